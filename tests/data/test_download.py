"""Downloads, against a server on this machine that misbehaves on demand."""

import gzip
import hashlib
import http.server
import re
import socket
import socketserver
import threading
from pathlib import PurePosixPath

import pytest
from tests.data.conftest import make_tar

import greedy_ensembles as ge
from greedy_ensembles.data import download as downloads
from greedy_ensembles.data.download import SOURCES, Source

RIGHT = bytes(range(256)) * 2000
MD5 = "md5:" + hashlib.md5(RIGHT).hexdigest()


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.server.asked.append(self.path)
        answer = self.server.answers.get(self.path, "missing")
        if isinstance(answer, list):
            answer = answer.pop(0)
        if answer == "missing":
            self.send_error(404)
            return
        if answer == "busy":
            self.send_error(503)
            return
        content = RIGHT if isinstance(answer, str) else answer
        if answer == "zipped" and "gzip" in self.headers.get("Accept-Encoding", ""):
            content = gzip.compress(content)  # as servers do whom nobody told otherwise
        self.protocol_version = "HTTP/1.1" if answer == "chunked" else "HTTP/1.0"
        self.send_response(200)
        if answer == "chunked":
            self.send_header("Transfer-Encoding", "chunked")
        elif answer not in ("endless", "dripping"):
            self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if answer in ("truncated", "stalled"):
            self.wfile.write(content[: len(content) // 2])
            self.wfile.flush()
            if answer == "stalled":
                self.server.over.wait()
            return
        if answer == "chunked":
            for part in (content[:1000], content[1000:], b""):
                self.wfile.write(b"%x\r\n%s\r\n" % (len(part), part))
            return
        if answer in ("endless", "dripping"):
            while not self.server.over.wait(0.01 if answer == "dripping" else 0):
                self.wfile.write(b"x" if answer == "dripping" else RIGHT)
            return
        self.wfile.write(content)

    def log_message(self, *_):
        pass


class Server(socketserver.ThreadingMixIn, http.server.HTTPServer):
    daemon_threads = True

    def handle_error(self, *_):
        pass  # a client that hangs up is what some tests are about


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with Server(("127.0.0.1", 0), Handler) as server:
        server.answers, server.asked, server.over = {}, [], threading.Event()
        server.url = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.over.set()
        server.shutdown()
        thread.join()


@pytest.fixture
def fetch(server, tmp_path, capsys):
    """Fetch to tmp_path/data/file from some paths of the server; returns what was said."""

    def run(*paths, digest=MD5, **options):
        options = {"timeout": 60.0, "pause": 0.0} | options
        urls = tuple(server.url + path for path in paths)
        downloads.fetch(Source("", urls, digest, 0), tmp_path / "data" / "file", **options)
        return capsys.readouterr().out.splitlines()

    return run


@pytest.fixture
def here(tmp_path):
    return tmp_path / "data" / "file"


def alone(path):
    """Say whether a file has no half-written neighbours."""
    return [other.name for other in path.parent.iterdir()] == [path.name]


def test_a_good_file_comes_once(server, fetch, here):
    server.answers["/a"] = RIGHT
    fetch("/a")
    assert here.read_bytes() == RIGHT
    assert alone(here)
    assert "is there already" in fetch("/a")[0]
    assert server.asked == ["/a"]


@pytest.mark.parametrize("way", ["chunked", "zipped"])
def test_the_way_it_is_sent_changes_no_byte(server, fetch, here, way):
    server.answers["/a"] = way
    fetch("/a", attempts=1)
    assert here.read_bytes() == RIGHT


def test_a_missing_file_is_asked_for_once_and_then_at_the_mirror(server, fetch, here):
    server.answers["/mirror"] = RIGHT
    fetch("/gone", "/mirror")
    assert here.read_bytes() == RIGHT
    assert server.asked == ["/gone", "/mirror"]


def test_all_addresses_fail_by_name(server, fetch, here):
    with pytest.raises(downloads.DownloadError, match="file could not be downloaded: ") as caught:
        fetch("/gone", "/lost")
    for path in ("/gone", "/lost"):
        assert f"{server.url}{path}: 404 Not Found" in str(caught.value)
    assert list(here.parent.iterdir()) == []


@pytest.mark.parametrize("fault", ["truncated", "busy"])
def test_a_passing_fault_is_tried_again(server, fetch, here, fault):
    server.answers["/a"] = [fault, fault, RIGHT]
    fetch("/a")
    assert here.read_bytes() == RIGHT
    assert server.asked == ["/a"] * 3


def test_a_truncated_answer_never_takes_the_place_of_a_file(server, fetch, here):
    server.answers["/a"] = "truncated"
    for digest in (MD5, None):
        with pytest.raises(downloads.DownloadError):
            fetch("/a", digest=digest)
        assert list(here.parent.iterdir()) == []


@pytest.mark.parametrize("fault", ["stalled", "dripping"])
def test_a_connection_that_brings_nothing_is_given_up(server, fetch, here, fault):
    server.answers["/a"] = fault
    with pytest.raises(downloads.DownloadError, match="/a: the connection stalled"):
        fetch("/a", timeout=0.1, attempts=1)
    assert list(here.parent.iterdir()) == []


def test_a_server_that_never_ends_is_left_for_the_mirror(server, fetch, here):
    server.answers |= {"/endless": "endless", "/mirror": RIGHT}
    fetch("/endless", "/mirror", attempts=1)
    assert here.read_bytes() == RIGHT
    assert alone(here)
    here.unlink()
    with pytest.raises(downloads.DownloadError, match="sends more than 1,000,000 bytes"):
        fetch("/endless", attempts=1)


def test_what_has_no_hash_is_refused_unless_it_is_trusted(server, tmp_path, monkeypatch):
    server.answers["/a"] = RIGHT
    monkeypatch.setitem(SOURCES, "lsun", (Source("a", (server.url + "/a",), None, 1),))
    with pytest.raises(ValueError, match="--trust"):
        downloads.download("lsun", tmp_path)
    assert server.asked == []
    assert downloads.download("lsun", tmp_path, trust=True) == [tmp_path / "a"]


def test_nobody_listens(tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound, and never listening: whoever calls is turned away
        url = f"http://127.0.0.1:{taken.getsockname()[1]}/a"
        with pytest.raises(downloads.DownloadError, match="ConnectionError"):
            downloads.fetch(Source("", (url,), MD5, 0), tmp_path / "file", pause=0.0)


def test_a_folder_that_cannot_be_made_says_where_else_to_put_it(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(
        OSError, match=r"deeper cannot be made: Not a directory; name another data folder with root=FOLDER"
    ):
        downloads.fetch(Source("file/set", ("http://localhost:1",), MD5, 0), tmp_path / "file" / "deeper" / "set")


def test_a_wrong_hash_names_all_and_keeps_the_old_file(server, fetch, here):
    here.parent.mkdir()
    here.write_bytes(b"the old one")
    server.answers["/a"] = b"something else"
    found = hashlib.md5(b"something else").hexdigest()
    message = f"{server.url}/a: it has the wrong hash: expected {MD5}, found md5:{found}"
    with pytest.raises(downloads.DownloadError, match=re.escape(message)) as caught:
        fetch("/a")
    assert "the file that was there is kept" in str(caught.value)
    assert here.read_bytes() == b"the old one"
    assert alone(here)
    assert server.asked == ["/a"]
    server.answers["/mirror"] = RIGHT
    fetch("/a", "/mirror")
    assert here.read_bytes() == RIGHT


def test_a_file_without_a_record_says_so(server, fetch, here):
    server.answers["/a"] = RIGHT
    said = fetch("/a", digest=None)
    digest = hashlib.sha256(RIGHT).hexdigest()
    assert f"unverified, for no public hash is known: this one has sha256:{digest}" in said[-1]
    assert here.exists()


def test_the_bar_survives_an_attempt_that_fails(server, fetch, here):
    server.answers["/a"] = ["truncated", RIGHT]
    fetch("/a", progress=True)
    assert here.exists()


def publish(server, monkeypatch, place, *names):
    content = make_tar(place / "packed", dict.fromkeys(names, b"abc"), "w:gz").read_bytes()
    (place / "packed").unlink()
    server.answers["/set.tar.gz"] = content
    digest = "sha256:" + hashlib.sha256(content).hexdigest()
    source = Source("sub/set.tar.gz", (server.url + "/set.tar.gz",), digest, 1, makes="set")
    monkeypatch.setitem(SOURCES, "mnist", (source,))


def test_a_set_is_unpacked_once_and_its_archive_removed(server, tmp_path, monkeypatch, capsys):
    publish(server, monkeypatch, tmp_path, "set/x", "set/y")
    for _ in range(2):
        assert downloads.download("mnist", tmp_path) == [tmp_path / "sub" / "set"]
    assert "is there already" in capsys.readouterr().out
    assert (tmp_path / "sub" / "set" / "x").read_bytes() == b"abc"
    assert [path.name for path in tmp_path.iterdir()] == ["sub"]
    assert server.asked == ["/set.tar.gz"]


def test_an_evil_archive_is_refused_even_with_the_right_hash(server, tmp_path, monkeypatch):
    publish(server, monkeypatch, tmp_path, "set/x", "../../evil")
    with pytest.raises(ValueError, match=r"'\.\./\.\./evil' leads out of the folder"):
        downloads.download("mnist", tmp_path / "data")
    assert not list(tmp_path.rglob("evil"))
    assert not list(tmp_path.rglob("x"))


def test_an_archive_of_something_else_is_refused(server, tmp_path, monkeypatch):
    publish(server, monkeypatch, tmp_path, "other/x")
    with pytest.raises(ValueError, match="has not made"):
        downloads.download("mnist", tmp_path)


def test_every_set_that_is_read_can_be_downloaded():
    assert set(SOURCES) == {name for name, entry in ge.data.SETS.items() if entry.forms}
    lengths = {"md5": 32, "sha256": 64}
    for name, sources in SOURCES.items():
        for source in sources:
            assert source.urls
            assert source.urls[0].startswith("https://")
            assert all(url.startswith(("https://", "http://")) for url in source.urls)
            assert (source.digest is None) == (name == "lsun")
            if source.digest:
                algorithm, _, digits = source.digest.partition(":")
                assert re.fullmatch(f"[0-9a-f]{{{lengths[algorithm]}}}", digits)


def test_what_is_downloaded_is_what_is_looked_for():
    """The places that the registry looks in are those that downloads fill."""
    for name, sources in SOURCES.items():
        made = [str(PurePosixPath(s.path).parent / s.makes) if s.makes else s.path for s in sources]
        entry = ge.data.SETS[name]
        for split in entry.counts:
            assert any(
                all(any(need == place or need.startswith(f"{place}/") for place in made) for need in form.needs(split))
                for form in entry.forms
            ), (name, split)


def test_names_are_checked():
    with pytest.raises(ValueError, match="did you mean 'svhn'"):
        downloads.download("svnh")
