"""Shapes as far as a loss needs them: a batch of numbers, [B], or a column of them, [B, 1]; on the way to these a
matrix, [B, N], and one number, [1]."""

from __future__ import annotations

import ast

from precgui.lint.arguments import keyword, number
from precgui.lint.flow import binding_before, definition, last_module, returned
from precgui.lint.method_names import SAME_SHAPE, SAME_VALUES
from precgui.lint.source import Source

_CREATORS = ("randn", "rand", "zeros", "ones", "empty", "full")
_REDUCTIONS = ("sum", "mean", "prod", "std", "var", "norm", "amax", "amin", "logsumexp")
_LOADERS = ("torch.utils.data.DataLoader", "torch.utils.data.dataloader.DataLoader")
_DATASETS = ("torch.utils.data.TensorDataset", "torch.utils.data.dataset.TensorDataset")
_CHANGE_SHAPE = ("unsqueeze_", "squeeze_", "resize_", "t_", "transpose_", "set_")
_MOST_STEPS = 12


def trailing_shape(source: Source, node: ast.AST, depth: int = 0) -> str:
    """`[B]`, `[B, 1]`, `[B, N]` (N may be 1), `[1]` of one number, or '' where it is another one or not certain."""
    current: ast.AST | None = node
    for _ in range(_MOST_STEPS if depth < _MOST_STEPS else 0):
        if isinstance(current, ast.Name | ast.Attribute):
            if shape := _of_batch(source, current, depth):
                return shape
            current = definition(source, current)
        elif isinstance(current, ast.Subscript):
            return _of_index(source, current, depth)
        elif isinstance(current, ast.Call):
            shape, current = _of_call(source, current, depth)
            if shape or current is None:
                return shape
        elif isinstance(current, ast.BinOp):
            shapes = [trailing_shape(source, each, depth + 2) for each in (current.left, current.right)]
            return _of_product(*shapes) if isinstance(current.op, ast.MatMult) else _of_both(*shapes)
        elif isinstance(current, ast.UnaryOp):
            current = current.operand
        else:
            return "[1]" if number(current) is not None else ""
    return ""


def _of_batch(source: Source, node: ast.AST, depth: int) -> str:
    """Of what a loop over `DataLoader(TensorDataset(x, y), batch_size=...)` unpacks, the shape of that tensor."""
    variable = source.variable(node) if isinstance(node, ast.Name) else None
    last = binding_before(source, variable, node) if variable is not None else None
    if variable is None or last is None or not isinstance(last.node, ast.For) or source.loop(node) is not last.node:
        return ""
    target, items = last.node.target, last.node.iter
    if isinstance(items, ast.Call) and source.name_of(items.func) == "enumerate" and isinstance(target, ast.Tuple):
        target, items = target.elts[-1], items.args[0] if items.args else items
    names = target.elts if isinstance(target, ast.Tuple | ast.List) else []
    tensors = _batched(source, items)
    if source.calls_of(variable, *_CHANGE_SHAPE) or len(names) != len(tensors):
        return ""
    own = [tensor for name, tensor in zip(names, tensors, strict=True) if source.variable(name) == variable]
    return trailing_shape(source, own[0], depth + 1) if len(own) == 1 else ""


def _batched(source: Source, items: ast.expr) -> list[ast.expr]:
    """The tensors that a DataLoader of torch certainly collates to batches of more than one sample; [] where unsure."""
    loader = items if isinstance(items, ast.Call) else definition(source, items)
    if not isinstance(loader, ast.Call) or source.name_of(loader.func) not in _LOADERS:
        return []
    size, dataset = keyword(loader, "batch_size", 1), keyword(loader, "dataset", 0)
    named = {each.arg for each in loader.keywords}
    is_one = size is None or number(size) == 1 or (isinstance(size, ast.Constant) and size.value is None)
    if is_one or named & {"collate_fn", "batch_sampler", None}:
        return []
    made = dataset if isinstance(dataset, ast.Call) or dataset is None else definition(source, dataset)
    if not isinstance(made, ast.Call) or source.name_of(made.func) not in _DATASETS or made.keywords:
        return []
    tensors = made.args
    changed = any(
        source.calls_of(variable, *_CHANGE_SHAPE) for each in tensors if (variable := source.variable(each)) is not None
    )
    return [] if changed or any(isinstance(each, ast.Starred) for each in tensors) else tensors


def _of_both(left: str, right: str) -> str:
    """Of two tensors element by element."""
    if "" not in (left, right) and "[1]" in (left, right):
        return right if left == "[1]" else left
    return left if left == right else ""


def _of_product(left: str, right: str) -> str:
    """Of a matrix product: with a vector, or with a column, of a matrix."""
    return right if left in ("[B, N]", "[B, 1]") and right in ("[B]", "[B, 1]") else ""


def _of_index(source: Source, node: ast.Subscript, depth: int) -> str:
    """Of `x[:, 0]` and `x[:, None]`; of a slice of a batch, the shape of the batch."""
    if isinstance(node.slice, ast.Slice):
        return trailing_shape(source, node.value, depth + 1) if isinstance(node.value, ast.Name) else ""
    parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else []
    if len(parts) != 2 or not isinstance(parts[0], ast.Slice) or not isinstance(parts[1], ast.Constant):
        return ""
    if parts[1].value is None:
        return "[B, 1]" if trailing_shape(source, node.value, depth + 1) == "[B]" else ""
    return "[B]" if trailing_shape(source, node.value, depth + 1) in ("[B, N]", "[B, 1]") else ""


def _of_call(source: Source, call: ast.Call, depth: int) -> tuple[str, ast.AST | None]:
    """The shape of a call's value, or else the expression that has the same one."""
    name = source.name_of(call.func).rpartition(".")[2]
    is_method = isinstance(call.func, ast.Attribute) and not source.name_of(call.func).startswith("torch.")
    if (size := sizes_of(source, call)) is not None:
        return _of_sizes(size), None
    if name in ("mv", "matmul", "mm"):
        operands = [call.func.value, *call.args] if is_method and isinstance(call.func, ast.Attribute) else call.args
        shapes = [trailing_shape(source, each, depth + 1) for each in operands]
        return (_of_product(*shapes) if len(shapes) == 2 else ""), None
    if name == "squeeze" and _numbers(call, is_method) in ([], [1.0], [-1.0]):
        inner = call.func.value if is_method and isinstance(call.func, ast.Attribute) else next(iter(call.args), None)
        return (
            "[B]" if inner is not None and trailing_shape(source, inner, depth + 1) in ("[B, 1]", "[B]") else ""
        ), None
    if name == "unsqueeze" and _numbers(call, is_method) in ([1.0], [-1.0]) and isinstance(call.func, ast.Attribute):
        return ("[B, 1]" if trailing_shape(source, call.func.value, depth + 1) == "[B]" else ""), None
    if name in ("view", "reshape"):
        sizes = _numbers(call, is_method)
        return ("[B]" if sizes == [-1.0] else "[B, 1]" if sizes == [-1.0, 1.0] else ""), None
    if name in _REDUCTIONS and is_method and isinstance(call.func, ast.Attribute):
        return _of_reduction(source, call, trailing_shape(source, call.func.value, depth + 1)), None
    if name == "flatten" and is_method and not call.args and not call.keywords:
        return "[B]", None
    if name in SAME_SHAPE:
        if is_method and isinstance(call.func, ast.Attribute):
            return "", call.func.value
        return "", call.args[0] if call.args else None
    if name in SAME_VALUES:
        return "", None
    return _of_module(source, call)


def _of_reduction(source: Source, call: ast.Call, before: str) -> str:
    """Of a sum, mean or the like over the last of two dimensions."""
    kept = keyword(call, "keepdim", 1)
    keeps = isinstance(kept, ast.Constant) and kept.value is True
    if before not in ("[B, N]", "[B, 1]") or number(keyword(call, "dim", 0)) not in (1.0, -1.0):
        return ""
    return "[B, 1]" if keeps else "[B]" if kept is None or isinstance(kept, ast.Constant) else ""


def _of_sizes(size: list[ast.expr]) -> str:
    """Of a tensor that is created with sizes that are written out."""
    if len(size) == 1:
        return "[1]" if number(size[0]) == 1 else "[B]"
    if len(size) == 2:
        return "[B, 1]" if number(size[1]) == 1 else "[B, N]"
    return ""


def _of_module(source: Source, call: ast.Call) -> tuple[str, ast.AST | None]:
    """Of a module that is called: its last nn.Linear, or what `forward` of its class returns."""
    created = definition(source, call.func)
    module = last_module(source, created)
    if module is not None and source.name_of(module.func).rpartition(".")[2] == "Linear":
        column = number(keyword(module, "out_features", 1)) == 1
        return ("[B, 1]" if column and _is_batch(source, call) else ""), None
    return "", returned(source, created)


def _is_batch(source: Source, call: ast.Call) -> bool:
    """Whether a module gets one tensor that is no sequence as far as the text tells."""
    return len(call.args) == 1 and not call.keywords


def sizes_of(source: Source, call: ast.AST) -> list[ast.expr] | None:
    """The sizes written into torch.randn(64, 1) and the like."""
    if not isinstance(call, ast.Call) or not source.name_of(call.func).startswith("torch."):
        return None
    if source.name_of(call.func).rpartition(".")[2] not in _CREATORS or not call.args:
        return None
    first = call.args[0]
    if isinstance(first, ast.Tuple | ast.List):
        return list(first.elts)
    sizes = call.args if source.name_of(call.func) != "torch.full" else []
    if len(sizes) == 1 and not isinstance(sizes[0], ast.Constant):
        return None  # a whole shape in a variable
    return list(sizes) if sizes and all(isinstance(each, ast.Constant | ast.Name) for each in sizes) else None


def _numbers(call: ast.Call, is_method: bool) -> list[float | None]:
    dims = [*(call.args if is_method else call.args[1:]), *(k.value for k in call.keywords if k.arg == "dim")]
    return [number(each) for each in dims]
