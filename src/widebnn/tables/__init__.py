"""CSV tables in, models and predictions out: what ``widebnn fit``, ``predict`` and ``evaluate`` do.

Modules that import JAX or pandas are imported where they are used, so that ``widebnn --help`` need not wait for them.
"""

from widebnn.tables.evaluate import evaluate_table as evaluate_table
from widebnn.tables.fit import TableFit as TableFit
from widebnn.tables.fit import TableModel as TableModel
from widebnn.tables.fit import describe_model as describe_model
from widebnn.tables.predict import predict_table as predict_table
from widebnn.tables.predict import to_csv as to_csv
