"""What a job needs travels by content: once to each host, and not at all where it is."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.fleet import plain_sweep

from embedl_hub.core import HubContext
from embedl_hub.errors import ConfigError, TrackingError
from embedl_hub.fleet import Job, Step, StepKind, SweepModel, Target
from embedl_hub.fleet import _parcel as parcel_module
from embedl_hub.fleet._parcel import Packer, bundle_bytes, import_runs, unpack
from embedl_hub.tracking import Store


class Shelf:
    """Keeps pieces and counts who fetches them."""

    def __init__(self) -> None:
        self.pieces: list[bytes] = []
        self.fetched: list[int] = []

    def put(self, data: bytes) -> int:
        self.pieces.append(data)
        return len(self.pieces) - 1

    def get(self, ref: int) -> bytes:
        self.fetched.append(ref)
        return self.pieces[ref]


@pytest.fixture
def there(tmp_path: Path) -> Iterator[Store]:
    with Store(tmp_path / "there") as store:
        yield store


def make_job(source: Path, *, compiled: str | None = None, **values: object) -> Job:
    step = Step("key", StepKind.PROFILE, "plain", "m", source, values, Target("a", ("a",)))
    return Job("sweep", step, compiled=compiled)


def test_paths_become_those_of_the_host(tmp_path: Path, there: Store) -> None:
    """Wherever they stand in the values, with the names they had; other values stay."""
    model, folder = tmp_path / "net.onnx", tmp_path / "data"
    model.write_bytes(b"model")
    (folder / "deep").mkdir(parents=True)
    (folder / "deep" / "x.npz").write_bytes(b"x")
    (folder / "empty.txt").touch()
    job = make_job(model, data=folder, pair=[model, {"again": folder}], text="net.onnx", number=3)
    shelf = Shelf()
    arrived = unpack(Packer(None, shelf.put).pack(job), there, shelf.get)
    source, values = arrived.step.source, arrived.step.values
    assert (source.name, source.read_bytes()) == ("net.onnx", b"model")
    assert source.is_relative_to(there.home)
    assert (values["data"] / "deep" / "x.npz").read_bytes() == b"x"
    assert (values["data"] / "empty.txt").read_bytes() == b""
    assert values["pair"] == [source, {"again": values["data"]}]
    assert (values["text"], values["number"]) == ("net.onnx", 3)


def test_what_is_there_is_not_fetched(tmp_path: Path, there: Store) -> None:
    """A second job with the same content under another name moves no bytes, and puts none."""
    model, twin = tmp_path / "a.onnx", tmp_path / "b.onnx"
    for path in (model, twin):
        path.write_bytes(b"the same")
    shelf = Shelf()
    packer = Packer(None, shelf.put)
    unpack(packer.pack(make_job(model)), there, shelf.get)
    assert unpack(packer.pack(make_job(twin)), there, shelf.get).step.source.name == "b.onnx"
    assert (len(shelf.pieces), shelf.fetched) == (1, [0])


def test_large_contents_go_in_pieces(tmp_path: Path, there: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parcel_module, "_CHUNK_BYTES", 1000)
    model = tmp_path / "large.onnx"
    model.write_bytes(bytes(range(250)) * 13)
    shelf = Shelf()
    arrived = unpack(Packer(None, shelf.put).pack(make_job(model)), there, shelf.get)
    assert len(shelf.pieces) == 4
    assert arrived.step.source.read_bytes() == model.read_bytes()


def test_little_is_kept_for_hosts_to_come(tmp_path: Path) -> None:
    """What was not asked for longest makes room, and is put again when it is."""
    shelf = Shelf()
    packer = Packer(None, shelf.put, most_kept_bytes=10)
    models = [tmp_path / f"{number}.onnx" for number in range(3)]
    for number, path in enumerate(models):
        path.write_bytes(bytes([number]) * 6)
        packer.pack(make_job(path))
    packer.pack(make_job(models[2]))
    assert len(shelf.pieces) == 3
    packer.pack(make_job(models[0]))
    assert len(shelf.pieces) == 4


def test_damage_on_the_way_is_noticed(tmp_path: Path, there: Store) -> None:
    model = tmp_path / "m.onnx"
    model.write_bytes(b"good")
    shelf = Shelf()
    parcel = Packer(None, shelf.put).pack(make_job(model))
    shelf.pieces[0] = b"evil"
    with pytest.raises(TrackingError, match="damaged on its way"):
        unpack(parcel, there, shelf.get)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"gone\.onnx to send"):
        Packer(None, Shelf().put).pack(make_job(tmp_path / "gone.onnx"))


def test_a_compiled_model_brings_its_run(tmp_path: Path, there: Store) -> None:
    """The run arrives with its artifacts, and what the sender has does not go back."""
    model = tmp_path / "m.onnx"
    model.write_bytes(b"weights " * 1000)
    with HubContext("p", home=tmp_path / "here") as ctx:
        with ctx.client.start_run("COMPILE") as run:
            ctx.client.log_artifact(model, name="path")
        assert ctx.client.store is not None
        shelf = Shelf()
        parcel = Packer(ctx.client.store, shelf.put).pack(make_job(model, compiled=run.id))
        unpack(parcel, there, shelf.get)
        arrived = there.run(run.id)
        assert arrived.artifacts["path"].local().read_bytes() == model.read_bytes()
        assert len(shelf.fetched) == 1
        back = bundle_bytes(there, run.id, known=parcel.known)
        assert len(back) < 2000
        import_runs(ctx.client.store, back)
        assert ctx.client.store.run(run.id).artifacts["path"].sha256 == arrived.artifacts["path"].sha256


def test_a_compiled_model_needs_a_store(tmp_path: Path) -> None:
    model = tmp_path / "m.onnx"
    model.write_bytes(b"m")
    with pytest.raises(ConfigError, match="with tracking"):
        Packer(None, Shelf().put).pack(make_job(model, compiled="0" * 32))


def test_sweeps_speak_of_files_as_paths(tmp_path: Path) -> None:
    """What the expansion of a sweep writes down is what a parcel looks for."""
    data = tmp_path / "d.npz"
    data.write_bytes(b"d")
    sweep = plain_sweep((SweepModel("m", data, {"calibration": data}),), options={"o": {"note": "$calibration"}})
    from embedl_hub.fleet import expand

    plan = expand(sweep, (Target("a", ("a",)),))
    step = next(step for step in plan.steps.values() if step.kind is StepKind.PROFILE)
    assert parcel_module.mentioned_paths(Job("s", step)) == [data]
    assert step.values["note"] == data
