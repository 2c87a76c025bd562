"""`eqco report`: what it says where there is nothing to report, and what it writes over."""

from eqco.cli.main import main


def test_a_folder_without_records_is_reported(tmp_path, capsys):
    (tmp_path / "results").mkdir()
    out = tmp_path / "page.html"
    assert main(["report", "--results", str(tmp_path / "results"), "--out", str(out)]) == 0
    said = capsys.readouterr().out
    assert f"there are no records in {tmp_path / 'results'}" in said
    assert "eqco reproduce tab5" in said
    assert out.exists()


def test_a_page_is_made_anew_and_no_other_file_is_written_over(tmp_path, capsys):
    results, out = tmp_path / "results", tmp_path / "page.html"
    results.mkdir()
    command = ["report", "--results", str(results), "--out", str(out)]
    out.write_text("<p>a thesis</p>")
    assert main(command) == 2
    assert f"{out} exists and is no page" in capsys.readouterr().err
    assert out.read_text() == "<p>a thesis</p>"
    out.unlink()
    assert main(command) == 0
    first = out.read_text()
    out.write_text(first + "<!-- older -->")
    assert main(command) == 0
    assert out.read_text() == first


def test_a_page_below_a_file_is_refused_without_traceback(tmp_path, capsys):
    (tmp_path / "results").mkdir()
    (tmp_path / "file").write_text("")
    out = tmp_path / "file" / "page.html"
    assert main(["report", "--results", str(tmp_path / "results"), "--out", str(out)]) == 2
    assert (
        f"{out} cannot be written (Not a directory). Move away the file" in capsys.readouterr().err
    )
