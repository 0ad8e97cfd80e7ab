import gzip
import json
import platform
from collections.abc import Mapping
from pathlib import Path

import pytest

from support import made_images as make
from support.made_images import LINK, Layout
from unhang.errors import UnhangError
from unhang.image import layout, tar
from unhang.image.stream import Reader
from unhang.image.tree import PLAIN, Change

ONE, TWO = make.tar(("one", b"1")), make.tar(("two", b"2"))
OWN = {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())


def names(reader: Reader) -> list[Change]:
    """Read a layer: its names."""
    found = [Change(it.path, it.kind, PLAIN) for it in tar.members(reader)]
    reader.finish()
    return found


def layers(path: Path) -> list[list[str]]:
    return [[it.path for it in layer] for layer in layout.read(str(path), names).layers]


def error(path: Path) -> str:
    with pytest.raises(UnhangError) as caught:
        layout.read(str(path), names)
    assert caught.value.code == "bad-image"
    return caught.value.message


def archive(folder: Path) -> Path:
    """Return the layout in a folder as an archive, with the index last."""
    paths = sorted((it for it in folder.rglob("*") if it.is_file()), key=lambda it: it.name == "index.json")
    (folder.parent / "layout.tar").write_bytes(
        make.tar(*((f"./{it.relative_to(folder)}", it.read_bytes()) for it in paths))
    )
    return folder.parent / "layout.tar"


def test_a_device_without_an_end_is_no_image() -> None:
    assert error(Path("/dev/zero")) == "it is neither a regular file nor a folder"


def test_what_docker_saves_is_read(tmp_path: Path) -> None:
    path = make.saved(tmp_path / "a.tar", [ONE, TWO], ["A=b=c", "D"], WorkingDir="/w", User="me")
    read = layout.read(str(path), names)
    assert layers(path) == [["one"], ["two"]]
    assert read.config == layout.Config({"A": "b=c", "D": ""}, "/w", "me")


def test_what_cannot_be_a_variable_or_a_folder_is_left_out(tmp_path: Path) -> None:
    path = make.saved(tmp_path / "a.tar", [ONE], ["A=\ud800", "B=\0", "C=é"], WorkingDir="\ud800")
    assert layout.read(str(path), names).config == layout.Config({"C": "é"}, "", "")


def test_a_compressed_archive_is_read(tmp_path: Path) -> None:
    path = make.saved(tmp_path / "a.tar", [ONE, TWO])
    path.write_bytes(gzip.compress(path.read_bytes()))
    assert layers(path) == [["one"], ["two"]]


def test_a_layer_that_docker_saved_as_a_link_is_read(tmp_path: Path) -> None:
    config: dict[str, object] = {"config": {}, "rootfs": {}}
    listing = [{"Config": "c.json", "RepoTags": None, "Layers": ["a/layer.tar", "b/layer.tar"]}]
    texts = [("c.json", json.dumps(config).encode()), ("manifest.json", json.dumps(listing).encode())]
    (tmp_path / "a.tar").write_bytes(make.tar(("a/layer.tar", ONE), ("b/layer.tar", (LINK, "../a/layer.tar")), *texts))
    assert layers(tmp_path / "a.tar") == [["one"], ["one"]]


@pytest.mark.parametrize("compress", [bytes, gzip.compress])
def test_an_oci_layout_is_read_in_a_folder_and_in_an_archive(compress: type, tmp_path: Path) -> None:
    made = Layout(tmp_path / "oci")
    folder = made.index(made.image([ONE, TWO], compress=compress))
    assert layers(folder) == layers(archive(folder)) == [["one"], ["two"]]


def test_of_several_platforms_ours_is_read_and_the_others_are_named(tmp_path: Path) -> None:
    made = Layout(tmp_path / "oci")
    other = made.image([ONE], platform={"os": "linux", "architecture": "riscv64"})
    own = made.image([TWO], platform={"os": "linux", "architecture": OWN})
    windows = made.image([ONE], platform={"os": "windows", "architecture": OWN})
    about = {"platform": {"os": "unknown"}, "annotations": {"vnd.docker.reference.type": "attestation-manifest"}}
    attestation = made.put(b"{}", **about)
    inner = made.put(
        json.dumps({"manifests": [other, windows, own, attestation]}).encode(),
        mediaType="application/vnd.oci.image.index.v1+json",
    )
    read = layout.read(str(made.index(inner)), names)
    assert [it.path for it in read.layers[0]] == ["two"]
    assert read.config.notes == (f"the image is for {', '.join(sorted([OWN, 'riscv64']))}; what is for {OWN} was read",)
    blob = made.folder / "blobs/sha256" / str(own["digest"])[7:]
    blob.unlink()  # an archive may list platforms of which it has nothing
    assert layers(made.folder) == [["one"]]


def test_of_several_images_none_is_guessed(tmp_path: Path) -> None:
    made = Layout(tmp_path / "oci")
    note = "org.opencontainers.image.ref.name"
    one, two = (made.image([it], annotations={note: name}) for it, name in ((ONE, "job:1"), (TWO, "job:2")))
    assert error(made.index(one, two)) == "it has several images: job:1, job:2"
    listing = [{"Config": "c", "RepoTags": [name]} for name in ("a:1", "b:2")]
    (tmp_path / "a.tar").write_bytes(make.tar(("manifest.json", json.dumps(listing).encode())))
    assert error(tmp_path / "a.tar") == "it has several images: a:1, b:2"


@pytest.mark.parametrize("before", [[], [("./", None), (".dockerenv", b""), ("app/a.py", b"{}")]])
def test_an_archive_of_a_root_file_system_is_one_layer(before: list[make.Entry], tmp_path: Path) -> None:
    path = tmp_path / "a.tar.gz"
    path.write_bytes(gzip.compress(make.tar(*before, ("usr/a", b"1"), ("manifest.json", b"{}"))))
    (found,) = layers(path)
    assert found[-2:] == ["usr/a", "manifest.json"]


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("part", ["config", "layer", "manifest"])
@pytest.mark.parametrize("how", ["missing", "changed"])
def test_each_part_is_there_and_has_its_digest(part: str, how: str, packed: bool, tmp_path: Path) -> None:
    made = Layout(tmp_path / "oci")
    whole = made.image([ONE])
    folder = made.index(whole)
    manifest = json.loads((folder / "blobs/sha256" / str(whole["digest"])[7:]).read_text())
    digest = {"manifest": whole, "config": manifest["config"], "layer": manifest["layers"][0]}[part]["digest"]
    blob = folder / "blobs/sha256" / digest[7:]
    if how == "missing":
        blob.unlink()
    elif part == "layer":
        blob.write_bytes(gzip.compress(TWO))
    else:
        blob.write_bytes(blob.read_bytes() + b" ")
    said = error(archive(folder) if packed else folder)
    assert said.startswith("it lacks" if how == "missing" else f"blobs/sha256/{digest[7:]} does not have its digest")


def test_a_layer_that_docker_saved_has_its_digest(tmp_path: Path) -> None:
    path = make.saved(tmp_path / "a.tar", [ONE])
    path.write_bytes(path.read_bytes().replace(ONE, TWO))
    assert error(path).startswith("0/layer.tar does not have its digest")


@pytest.mark.parametrize(
    "index",
    [
        [],
        {"manifests": {}},
        {"manifests": [1]},
        {"manifests": []},
        {"manifests": [{}]},
        {"manifests": [{"digest": "sha512:" + "0" * 128}]},
        {"manifests": [{"digest": "sha256:../../../../etc/passwd"}]},
        {"manifests": [{"digest": "sha256:" + "0" * 64, "platform": 1}]},
        {"manifests": [{}] * 1001},
    ],
)
def test_an_index_that_is_none_is_an_error(index: object, tmp_path: Path) -> None:
    made = Layout(tmp_path / "oci")
    made.index()
    (made.folder / "index.json").write_text(json.dumps(index))
    error(made.folder)


@pytest.mark.parametrize(
    "change",
    [{"config": None}, {"layers": "x"}, {"layers": [{"digest": 1}]}, {"layers": [{"mediaType": "x+encrypted"}]}],
)
def test_a_manifest_that_is_none_is_an_error(change: Mapping[str, object], tmp_path: Path) -> None:
    made = Layout(tmp_path / "oci")
    manifest = {"config": made.put(b"{}"), "layers": [made.put(ONE)], **change}
    error(made.index(made.put(json.dumps(manifest).encode())))


def test_an_index_in_itself_has_an_end(tmp_path: Path) -> None:
    made = Layout(tmp_path / "oci")
    found = made.image([ONE])
    for _ in range(9):
        text = json.dumps({"manifests": [found]}).encode()
        found = made.put(text, mediaType="application/vnd.oci.image.index.v1+json")
    assert error(made.index(found)) == "its index lists no image"


@pytest.mark.parametrize("text", [b"{" * 100_000, b"{", b"[1]", b"\xff"])
def test_documents_that_are_not_json_are_an_error(text: bytes, tmp_path: Path) -> None:
    made = Layout(tmp_path / "oci")
    made.index()
    (made.folder / "index.json").write_bytes(text)
    error(made.folder)


def test_what_is_no_image_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "a.tar").write_bytes(ONE)
    assert error(tmp_path / "a.tar").startswith("it is no image")
    (tmp_path / "b.tar").write_bytes(b"x" * 99)
    assert error(tmp_path / "b.tar").startswith("a layer is no tar archive")
    (tmp_path / "empty").mkdir()
    assert error(tmp_path / "empty").startswith("it is no image")


def test_a_part_of_a_folder_is_not_read_through_a_link_out_of_it(tmp_path: Path) -> None:
    made = Layout(tmp_path / "oci")
    made.index()
    (tmp_path / "index.json").write_text("{}")
    (made.folder / "index.json").unlink()
    (made.folder / "index.json").symlink_to("../index.json")
    assert error(made.folder).startswith("it is no image")


def test_a_root_file_system_is_told_from_a_layout(tmp_path: Path) -> None:
    assert not layout.is_system(str(Layout(tmp_path / "oci").folder))
    assert not layout.is_system(str(tmp_path))
    (tmp_path / "usr").mkdir()
    assert layout.is_system(str(tmp_path))
