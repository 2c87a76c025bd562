"""`eqco report` where there is nothing to report."""

from eqco.cli.main import main


def test_a_folder_without_records_is_told_so(tmp_path, capsys):
    (tmp_path / "results").mkdir()
    out = tmp_path / "page.html"
    assert main(["report", "--results", str(tmp_path / "results"), "--out", str(out)]) == 0
    said = capsys.readouterr().out
    assert f"there are no records in {tmp_path / 'results'}" in said
    assert "eqco reproduce tab5" in said
    assert out.exists()
