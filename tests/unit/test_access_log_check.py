"""The independent reading of a line, and the comparison, fed by hand."""

import pytest

from epochline_examples.access_log.check import ANYTHING, Comparison, main, parse, read_lines

CLEAN = b'192.0.2.7 - - [17/May/2015:12:05:03 +0200] "GET /a?b=1 HTTP/1.1" 200 10 "http://x/" "curl/7"'
DASH = b'192.0.2.7 - frank [17/May/2015:10:05:04 +0000] "GET /b HTTP/1.0" 304 - "-" "-"'
ESCAPED = rb'host.example - - [17/May/2015:10:05:05 +0000] "GET /c HTTP/1.1" 200 7 "-" "a \"b\" c"'
MALFORMED = b'192.0.2.7 - - [32/Foo/2015:10:05:03 +0000] "GET /a HTTP/1.1" 200 10 "-" "-"'
SECONDS = 1431857103

CLEAN_ROW = ("192.0.2.7", SECONDS * 10**6, 200, 10, "GET", "/a?b=1", "HTTP/1.1", "http://x/", "curl/7")
DASH_ROW = ("192.0.2.7", (SECONDS + 1) * 10**6, 304, None, "GET", "/b", "HTTP/1.0", "-", "-")
ESCAPED_ROW = ("host.example", (SECONDS + 2) * 10**6, 200, 7, "GET", "/c", "HTTP/1.1", "-", r"a \"b\" c")
CLIENTS = [("192.0.2.7", 2, 10), ("host.example", 1, 7)]


def line(request=b"GET / HTTP/1.1", tail=b"", time=b"17/May/2015:10:05:03 +0000", status=b"200", size=b"1"):
    return b'h - - [%s] "%s" %s %s%s' % (time, request, status, size, tail)


def test_every_column_of_a_regular_line_is_sure():
    parsed = parse(CLEAN)

    assert (parsed.client, parsed.seconds, parsed.status, parsed.size) == ("192.0.2.7", SECONDS, 200, 10)
    assert parsed.texts == ("GET", "/a?b=1", "HTTP/1.1", "http://x/", "curl/7")
    assert parsed.sure


@pytest.mark.parametrize(
    ("request_text", "columns"),
    [
        pytest.param(b"", (None, "", None), id="empty"),
        pytest.param(b"-", (None, "-", None), id="dash"),
        pytest.param(b"GET /x", (None, "GET /x", None), id="no protocol"),
        pytest.param(b"HELP", (None, "HELP", None), id="one word"),
        pytest.param(b"GET /a b HTTP/1.1", (ANYTHING,) * 3, id="space in the path"),
        pytest.param(b"GET / RTSP/1.0", (ANYTHING,) * 3, id="another protocol"),
        pytest.param(b"GET /a/1.0", (None, "GET /a/1.0", None), id="a path like a protocol"),
        pytest.param(b"get / HTTP/1.1", (ANYTHING,) * 3, id="small letters"),
        pytest.param(b'GET /"x HTTP/1.1', (ANYTHING,) * 3, id="unescaped quote"),
        pytest.param(rb"\x16\x03", (None, frozenset({r"\x16\x03", "\x16\x03"}), None), id="bytes"),
        pytest.param(rb"GET /\" HTTP/1.1", ("GET", frozenset({r"/\"", '/"'}), "HTTP/1.1"), id="escaped quote"),
    ],
)
def test_a_request_is_regular_or_odd_or_a_matter_of_taste(request_text, columns):
    assert parse(line(request=request_text)).texts[:3] == columns


@pytest.mark.parametrize(
    ("tail", "columns"),
    [
        pytest.param(b"", (None, None), id="common log format"),
        pytest.param(b' "-" "-"', ("-", "-"), id="dashes"),
        pytest.param(b' "-" "Mozilla', (ANYTHING, ANYTHING), id="no closing quote"),
        pytest.param(b' "-"', (ANYTHING, ANYTHING), id="no agent"),
        pytest.param(' "-" "Обозреватель 🦊"'.encode(), ("-", "Обозреватель 🦊"), id="other scripts"),
        pytest.param(b' "-" "caf\xe9"', ("-", ANYTHING), id="not utf-8"),
        pytest.param(rb' "-" "\xe9\n\\"', ("-", frozenset({r"\xe9\n\\", "\xe9\n\\"})), id="escapes"),
    ],
)
def test_referrer_and_agent_are_sure_where_the_tail_is_regular(tail, columns):
    assert parse(line(tail=tail)).texts[3:] == columns


@pytest.mark.parametrize(
    ("time", "seconds"),
    [
        (b"17/May/2015:10:05:03 +0000", SECONDS),
        (b"17/May/2015:15:50:03 +0545", SECONDS),
        (b"17/May/2015:06:35:03 -0330", SECONDS),
        (b"29/Feb/2016:00:00:00 +0000", 1456704000),
        (b"31/Dec/1969:23:59:59 +0000", -1),
    ],
)
def test_a_time_is_an_instant_whatever_its_zone(time, seconds):
    assert parse(line(time=time)).seconds == seconds


@pytest.mark.parametrize(
    "malformed",
    [
        pytest.param(b"", id="empty"),
        pytest.param(b" \t ", id="blank"),
        pytest.param(b'{"client": "192.0.2.7"}', id="JSON"),
        pytest.param(MALFORMED, id="32/Foo"),
        pytest.param(line(time=b"29/Feb/2015:10:05:03 +0000"), id="29 February of a common year"),
        pytest.param(line(time=b"17/May/2015:25:05:03 +0000"), id="25 o'clock"),
        pytest.param(line(time=b"17/May/2015:10:05:03"), id="no zone"),
        pytest.param(line(time=b"17/May/2015:10:05:03 +0075"), id="zone of 75 minutes"),
        pytest.param(line(status=b"abc"), id="status abc"),
        pytest.param(line(status=b"20"), id="status of two digits"),
        pytest.param(line(size=b"12kB"), id="size with a unit"),
        pytest.param(line(size=b""), id="no size"),
        pytest.param(line(size=b"9223372036854775808"), id="size beyond bigint"),
        pytest.param(b'[17/May/2015:10:05:03 +0000] "GET / HTTP/1.1" 200 1', id="no client"),
        pytest.param(b"h - - [17/May/2015:10:05:03 +0000] 200 1", id="no request"),
        pytest.param(b'h - - [17/May/2015:10:05:03 +0000] "GET / HTTP/1.1 200 1', id="request not closed"),
        pytest.param(b"h - - [17/May/20", id="cut off"),
    ],
)
def test_a_line_without_one_of_the_five_is_malformed(malformed):
    assert parse(malformed) is None


@pytest.mark.parametrize(
    "sound",
    [
        pytest.param(b'h - frank the tank [17/May/2015:10:05:03 +0000] "GET / HTTP/1.1" 200 1', id="user with spaces"),
        pytest.param(b'h - [17/May/2015:10:05:03 +0000] "GET / HTTP/1.1" 200 1', id="no user"),
        pytest.param(line() + b"\r", id="carriage return"),
        pytest.param(line(tail=b' "-" "-"  '), id="blanks at the end"),
        pytest.param(line(tail=b' "-" "-" "192.0.2.1" 0.003'), id="more fields"),
        pytest.param(line(time=b"17/MAY/2015:10:05:03 +0000"), id="month in capitals"),
    ],
)
def test_a_line_with_all_five_is_sound_whatever_else_it_holds(sound):
    assert parse(sound).seconds == SECONDS


def test_only_line_ends_are_taken_off(tmp_path):
    log = tmp_path / "access.log"
    log.write_bytes(b" a \r\n\n\xff\nlast")

    assert list(read_lines(log)) == [b" a \r", b"", b"\xff", b"last"]


@pytest.fixture
def comparison(tmp_path):
    log = tmp_path / "access.log"
    log.write_bytes(b"\n".join([CLEAN, DASH, ESCAPED, MALFORMED]) + b"\n")
    return Comparison([log])


def compare(comparison, rows, quarantine=(MALFORMED,), clients=CLIENTS):
    comparison.rows(rows)
    comparison.quarantine(quarantine)
    comparison.clients(clients)
    return comparison.report


def test_a_target_that_holds_each_line_once_is_exact(comparison):
    report = compare(comparison, [ESCAPED_ROW, CLEAN_ROW, DASH_ROW])

    assert report.exact
    assert report.verdict == "EXACT: each of 4 lines took effect exactly once (3 rows, 1 quarantined)"
    assert report.samples == []


def test_escapes_may_be_resolved(comparison):
    assert compare(comparison, [(*ESCAPED_ROW[:-1], 'a "b" c'), CLEAN_ROW, DASH_ROW]).exact


@pytest.mark.parametrize("row", [CLEAN_ROW, DASH_ROW, ESCAPED_ROW], ids=["sure", "dash", "unsure"])
def test_a_second_copy_of_a_row_is_a_duplicate(comparison, row):
    report = compare(comparison, [CLEAN_ROW, DASH_ROW, ESCAPED_ROW, row])

    assert report.verdict == "NOT EXACT: duplicates 1"
    assert report.samples[0].startswith(f"duplicate: {row[0]} | 2015-05-17T10:05:0")


@pytest.mark.parametrize("lost", [0, 1, 2], ids=["sure", "dash", "unsure"])
def test_a_line_without_a_row_is_missing(comparison, lost):
    rows = [CLEAN_ROW, DASH_ROW, ESCAPED_ROW]
    del rows[lost]

    report = compare(comparison, rows)

    assert report.verdict == "NOT EXACT: missing 1"
    assert report.samples == [f"missing: {[CLEAN, DASH, ESCAPED][lost].decode()}"]


@pytest.mark.parametrize(
    ("column", "value"),
    [
        (0, "192.0.2.8"),
        (1, 0),
        (2, 201),
        (3, None),
        (4, None),
        (5, "/"),
        (6, "HTTP/1.0"),
        (7, None),
        (8, "curl"),
    ],
)
def test_a_row_with_another_value_is_altered(comparison, column, value):
    row = (*CLEAN_ROW[:column], value, *CLEAN_ROW[column + 1 :])

    report = compare(comparison, [row, DASH_ROW, ESCAPED_ROW])

    assert report.verdict == "NOT EXACT: altered 1"
    assert report.samples[0].startswith(f"altered: {CLEAN.decode()} became")


def test_a_row_of_no_line_is_not_produced(comparison):
    report = compare(comparison, [CLEAN_ROW, DASH_ROW, ESCAPED_ROW, ("x", 1, 2, 3, None, "", None, None, None)])

    assert report.verdict == "NOT EXACT: not produced 1"


def test_equal_lines_are_counted_not_merged(tmp_path):
    log = tmp_path / "access.log"
    log.write_bytes(CLEAN + b"\n" + CLEAN + b"\n")
    clients = [("192.0.2.7", 2, 20)]

    assert compare(Comparison([log]), [CLEAN_ROW] * 2, [], clients).exact
    assert compare(Comparison([log]), [CLEAN_ROW], [], clients).verdict == "NOT EXACT: missing 1"
    assert compare(Comparison([log]), [CLEAN_ROW] * 3, [], clients).verdict == "NOT EXACT: duplicates 1"


def test_a_log_named_twice_was_produced_twice(tmp_path):
    log = tmp_path / "access.log"
    log.write_bytes(CLEAN + b"\n")

    assert compare(Comparison([log, log]), [CLEAN_ROW] * 2, [], [("192.0.2.7", 2, 20)]).exact


@pytest.mark.parametrize(
    ("quarantine", "sample"),
    [
        pytest.param([], "malformed, not quarantined: ", id="missing"),
        pytest.param([MALFORMED, MALFORMED], "quarantined too often: ", id="twice"),
        pytest.param([MALFORMED, CLEAN], "quarantined, not malformed: ", id="sound"),
        pytest.param([MALFORMED, None], "quarantined, not malformed: NULL", id="no value"),
    ],
)
def test_the_quarantine_holds_the_malformed_lines_and_no_others(comparison, quarantine, sample):
    report = compare(comparison, [CLEAN_ROW, DASH_ROW, ESCAPED_ROW], quarantine)

    assert report.verdict == "NOT EXACT: quarantine differing 1"
    assert report.samples[0].startswith(sample)


@pytest.mark.parametrize(
    "clients",
    [
        pytest.param(CLIENTS[:1], id="missing"),
        pytest.param([*CLIENTS, ("192.0.2.9", 1, 1)], id="one too many"),
        pytest.param([("192.0.2.7", 3, 10), CLIENTS[1]], id="requests"),
        pytest.param([("192.0.2.7", 2, 20), CLIENTS[1]], id="bytes"),
    ],
)
def test_the_sums_per_client_are_compared(comparison, clients):
    report = compare(comparison, [CLEAN_ROW, DASH_ROW, ESCAPED_ROW], clients=clients)

    assert report.verdict == "NOT EXACT: requests_per_client differing 1"


def test_at_most_five_samples_are_kept_and_long_ones_are_cut(tmp_path):
    log = tmp_path / "access.log"
    log.write_bytes(b"".join(CLEAN.replace(b"/a", b"/" + b"x" * 400 + b"%d" % n) + b"\n" for n in range(9)))

    report = compare(Comparison([log]), [], [], [("192.0.2.7", 9, 90)])

    assert report.missing == 9
    assert [len(sample) for sample in report.samples] == [300] * 5


def test_a_password_on_the_command_line_is_refused(tmp_path, capsys):
    log = tmp_path / "access.log"
    log.write_bytes(CLEAN)

    assert main(["--log", str(log), "--dsn", "postgresql://me:secret@127.0.0.1:1/x"]) == 2

    error = capsys.readouterr().err
    assert "PGPASSFILE" in error
    assert "secret" not in error


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        pytest.param(["--log", "/no/such/log", "--dsn", "host=127.0.0.1"], "/no/such/log is not a file", id="log"),
        pytest.param(["--log", __file__, "--dsn", "postgresql://127.0.0.1:1/x"], "port 1 failed", id="server"),
        pytest.param(["--log", __file__, "--dsn", "nonsense"], "missing", id="dsn"),
        pytest.param(["--log", __file__, "--service", "no such"], "no such", id="service"),
    ],
)
def test_what_prevents_the_comparison_is_said_in_one_line(arguments, message, capsys):
    assert main(arguments) == 2

    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
