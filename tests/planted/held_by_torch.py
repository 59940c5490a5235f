"""Kinds of tests whose tensors are held by torch: graphs, hooks, modules, views; and by NumPy and the host's heap."""

from __future__ import annotations

from tests.planted.kind import Kind, clean, leak, simple

WEIGHT = "W$n = torch.ones(100, requires_grad=True)"
LAYER = "M$n = torch.nn.Linear(8, 8)"

GRAPHS: tuple[Kind, ...] = (
    leak(
        "losses", "G$n = []", "w = torch.ones(8, requires_grad=True); G$n.append((w * 2).sum())", "each keeps its graph"
    ),
    clean(
        "loss replaced",
        "G$n = Node()",
        "w = torch.ones(8, requires_grad=True); G$n.last = (w * w).sum()",
        "the last stays",
    ),
    leak(
        "running total of losses",
        "G$n = Node(total=0)",
        "w = torch.ones(8, requires_grad=True); G$n.total = G$n.total + (w * w).sum()",
        "one total stays, whose graph has a node and a saved tensor more each run",
    ),
    clean(
        "running total of numbers",
        "G$n = Node(total=0)",
        "w = torch.ones(8, requires_grad=True); G$n.total = G$n.total + (w * w).sum().detach()",
        "one total stays, without a graph",
    ),
    leak(
        "graph nodes",
        "G$n = []",
        "w = torch.ones(8, requires_grad=True); G$n.append((w * w).sum().grad_fn)",
        "the node of each run keeps the tensors that it saved",
    ),
    clean(
        "gradients summed up in place",
        WEIGHT,
        "(W$n * W$n).sum().backward()",
        "the first run makes .grad, the second adds",
    ),
    clean("gradients made anew", WEIGHT, "W$n.grad = None; (W$n * W$n).sum().backward()", "one .grad at a time"),
    clean("gradients nobody reads", LAYER, "M$n(torch.ones(4, 8)).sum().backward()", "made once, 0.3 kB"),
    leak(
        "parameters with gradients nobody reads",
        "G$n = []",
        "m = torch.nn.Linear(8, 8); m(torch.ones(4, 8)).sum().backward(); G$n.append(m)",
        "a model a run",
    ),
    simple(
        "large gradients of a global model",
        "M$n = torch.nn.Linear(1024, 1024)",
        "M$n(torch.ones(1, 1024)).sum().backward()",
        "retained",
        "4 MiB that stay with a global model, replaced by nothing",
    ),
    clean(
        "training of a local model",
        "",
        "m = torch.nn.Linear(8, 8); o = torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9)\n"
        "m(torch.ones(4, 8)).sum().backward(); o.step()",
        "the model goes, and the optimizer's state with it",
    ),
    leak(
        "forward hooks",
        LAYER,
        "x = $array; M$n.register_forward_hook(lambda *_: x.sum())",
        "the layer keeps the closures",
    ),
    clean(
        "forward hook removed", LAYER, "x = $array; M$n.register_forward_hook(lambda *_: x.sum()).remove()", "taken out"
    ),
    clean("forward hooks without an array", LAYER, "M$n.register_forward_hook(lambda *_: None)", "no array stays"),
    leak(
        "tensor hooks",
        WEIGHT,
        "x = $array; W$n.register_hook(lambda g: x.sum() and None)",
        "the weight keeps the closures",
    ),
    clean(
        "tensor hook on a local",
        "",
        "x = $array.requires_grad_(); x.register_hook(lambda g: None)",
        "goes with its tensor",
    ),
    clean("tensor that refers to itself", "", "x = $array; x.me = x", "a cycle through the tensor's dict"),
    leak(
        "module's buffers", LAYER, "M$n.register_buffer(f'b{len(M$n._buffers)}', $array)", "the layer has a buffer more"
    ),
    clean("module's buffer replaced", LAYER, "M$n.register_buffer('b', $array)", "the layer has one buffer"),
    clean("weight replaced", LAYER, "M$n.weight = torch.nn.Parameter(torch.ones(8, 8))", "the layer has one weight"),
    leak("layers", "M$n = torch.nn.Sequential()", "M$n.append(torch.nn.Linear(8, 8))", "the model has a layer more"),
    leak(
        "states of models",
        "G$n = []",
        "G$n.append(torch.nn.Linear(8, 8).state_dict())",
        "their tensors outlive the model",
    ),
    leak(
        "states of optimizers",
        "G$n = []",
        "w = torch.ones(8, requires_grad=True); o = torch.optim.SGD([w], lr=0.1); G$n.append(o)",
        "each with its weight",
    ),
)

STORAGES: tuple[Kind, ...] = (
    leak("views of locals", "G$n = []", "G$n.append(torch.ones(1000)[:8])", "each keeps all of its base's storage"),
    leak(
        "views of a global", "G$n, B$n = [], torch.ones(100)", "G$n.append(B$n[:8])", "a tensor a run, without memory"
    ),
    clean(
        "view of a global replaced", "G$n, B$n = Node(), torch.ones(100)", "G$n.last = B$n[:8]", "one view at a time"
    ),
    leak("storages", "G$n = []", "G$n.append(torch.ones(400_000).untyped_storage())", "1.5 MiB a run"),
    clean("storage replaced", "G$n = Node()", "G$n.last = torch.ones(1000).untyped_storage()", "one storage at a time"),
    leak(
        "NumPy views of tensors", "G$n = []", "G$n.append(torch.ones(1000).numpy())", "each keeps the tensor's storage"
    ),
    clean("NumPy view of a tensor replaced", "G$n = Node()", "G$n.last = torch.ones(1000).numpy()", "one at a time"),
    leak("tensors of NumPy arrays", "G$n = []", "G$n.append(torch.from_numpy(np.ones(1000)))", "a tensor a run"),
    simple(
        "joined to a larger one",
        "G$n = Node(all=torch.ones(0))",
        "G$n.all = torch.cat([G$n.all, torch.ones(1 << 19)])",
        "fails",
        "one stays, larger by 2 MiB each run: fails by its size or as growing",
    ),
    clean(
        "of a size that alternates",
        "C$n = itertools.count()",
        "STATE['C$n'] = torch.ones(100 + 50 * (next(C$n) % 2))",
        "one stays, no larger after two runs than after none",
    ),
    clean(
        "of a size that falls",
        "C$n = itertools.count()",
        "STATE['C$n'] = torch.ones(max(1, 900 - next(C$n)))",
        "one stays, smaller each run",
    ),
    clean(
        "of another type in turn",
        "C$n = itertools.count()",
        "STATE['C$n'] = torch.ones(64, dtype=(torch.float32, torch.int32)[next(C$n) % 2])",
        "one stays, of one size",
    ),
    clean("resized in place", "A$n = torch.ones(8)", "A$n.resize_(800)", "an older tensor, enlarged once"),
    clean("without memory", "G$n = []", "G$n.append(torch.ones(8, device='meta'))", "meta tensors own none"),
    leak("small tensors", "G$n = []", "G$n.extend(torch.ones(1) for _ in range(5000))", "5,000 more each run"),
    clean("small tensors replaced", "G$n = []", "G$n[:] = [torch.ones(1) for _ in range(5000)]", "5,000 stay"),
    simple(
        "large, filled once", "G$n = []", "G$n or G$n.append(torch.ones(1 << 19))", "retained", "2 MiB stay for good"
    ),
    clean(
        "large replaced an older one",
        "G$n = [torch.ones(1 << 19)]",
        "G$n[0] = torch.ones(1 << 19)",
        "2 MiB come, 2 MiB go",
    ),
    clean(
        "large replaced an older one in a cycle",
        "G$n = [cycle(torch.ones(1 << 19))]",
        "G$n[0] = cycle(torch.ones(1 << 19))",
        "2 MiB come, and 2 MiB go once a collection comes",
    ),
    leak(
        "large in a list beside an older one let go",
        "G$n, OLD$n = [], [torch.ones(1 << 19)]",
        "OLD$n.clear(); G$n.append(torch.ones(1 << 19))",
        "nets to nothing once, grows after",
    ),
)

HOST: tuple[Kind, ...] = (
    leak("host bytes", "G$n = []", "G$n.append(bytearray(12 << 20))", "12 MiB a run; the limit is 10"),
    clean("host bytes below the limit", "G$n = []", "G$n.append(bytearray(2 << 20))", "2 MiB a run; the limit is 10"),
    clean("host bytes replaced", "G$n = Node()", "G$n.last = bytearray(12 << 20)", "12 MiB stay, and grow no further"),
    clean(
        "host bytes filled once",
        "G$n = []",
        "G$n or G$n.append(bytearray(12 << 20))",
        "12 MiB stay, and grow no further",
    ),
    clean("host scratch", "", "x = bytearray(30 << 20)", "gone when the test returns"),
    clean("host scratch in a cycle", "", "cycle(bytearray(12 << 20))", "a collection frees it"),
    leak(
        "host bytes beside scratch",
        "G$n = []",
        "x = bytearray(30 << 20); G$n.append(bytearray(12 << 20))",
        "12 MiB a run",
    ),
    leak(
        "host bytes that replace older ones once",
        "G$n, OLD$n = [], [bytearray(12 << 20)]",
        "if OLD$n:\n    OLD$n.clear()\nG$n.extend([bytearray(12 << 20), bytearray(12 << 20)])",
        "24 MiB a run",
    ),
    leak(
        "many host strings",
        "G$n = []",
        "G$n.append([b'%1000d' % i for i in range(12_000)])",
        "12 MiB a run in small blocks",
    ),
    leak("NumPy arrays", "G$n = []", "G$n.append(np.ones(1 << 17))", "1 MiB a run; the limit for arrays is 0.25"),
    simple("NumPy array replaced", "G$n = Node()", "G$n.last = np.ones(1 << 17)", "retained", "1 MiB stays"),
    clean("NumPy array in a cycle", "", "cycle(np.ones(1 << 17))", "a collection frees it"),
    simple("NumPy array filled once", "G$n = []", "G$n or G$n.append(np.ones(1 << 17))", "retained", "1 MiB stays"),
    leak("NumPy views", "G$n = []", "G$n.append(np.ones(1 << 17)[:8])", "each keeps all of its base"),
    clean("NumPy views of a global", "G$n, B$n = [], np.ones(1 << 17)", "G$n.append(B$n[:8])", "no memory is added"),
)

KINDS = (*GRAPHS, *STORAGES, *HOST)
