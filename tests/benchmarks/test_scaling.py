"""The cost model of several devices, and what programs send."""

import json

import numpy as np

import scaling

PROGRAM = """
  %a = f32[12,12]{1,0} all-reduce(%x), channel_id=1, to_apply=%add
  %b = (f64[], f64[]) all-reduce(%y, %z), channel_id=2
  %c = f32[12,3]{1,0} collective-permute-start(%w), channel_id=3
  %d = f32[5]{0} add(%p, %q)
"""


def test_collectives_are_read_off_programs():
    found = scaling.collectives(PROGRAM)
    assert [one["kind"] for one in found] == ["all-reduce", "all-reduce", "collective-permute"]
    assert [one["bytes"] for one in found] == [576, 16, 144]


def test_the_model_is_found_again():
    truth = scaling.Model(2e-12, 3e-10, 4e-12, 1e-3, 5e-5, 1e-9)
    rows = [
        {"what": "step", "sampler": "pcn", "n": n, "width": w, "devices": 1, "processes": 1}
        | {"seconds": truth.compute(n, w, 1)}
        for n, w in scaling.ONE_DEVICE
    ]
    rows += [
        {"what": "all-reduce", "n": n, "devices": d, "processes": d, "seconds": truth.communication(n, d)}
        for n in (64, 1024)
        for d in (2, 4)
    ]
    found = scaling.fit(rows, "pcn", "processes")
    np.testing.assert_allclose(list(vars(found).values()), list(vars(truth).values()), rtol=1e-6)
    assert truth.seconds(256, 4096, 1) == truth.compute(256, 4096, 1)


def test_predictions_make_sense():
    rows = scaling.predict()
    assert {row["devices"] for row in rows} == {8, 256}
    for row in rows:
        assert 0 < row["speed-up"] <= row["devices"]
        assert 0 <= row["replicated"] + row["communication"] <= 1
    assert not any(row["fits"] for row in rows if row["n"] == 100_000)
    assert all(row["fits"] for row in rows if row["n"] <= 1000 and row["devices"] == 256)


def test_the_page_says_what_was_measured():
    assert scaling.PAGE.read_text() == scaling.page(json.loads(scaling.OUT.read_text()))
