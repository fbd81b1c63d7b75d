"""Names of other libraries hidden from this one alone, as if a later version had renamed them."""

import importlib
import sys
import types


def _is_hidden_from(frame):
    if frame.f_code.co_name in ("dumps", "loads"):
        return False  # pickle knows a class of the library by the name that it has
    return frame.f_globals.get("__name__", "").partition(".")[0] == "skfleet"


class _Hidden:
    """Attribute of a class or of its instances that the functions of skfleet do not see."""

    def __init__(self, owner, name):
        self.name, self.values = name, [vars(owner)[name]] if name in vars(owner) else []

    def __get__(self, obj, owner):
        target = owner if obj is None else obj
        if not _is_hidden_from(sys._getframe(1)):
            if obj is not None and self.name in vars(obj):
                return vars(obj)[self.name]
            for value in self.values:
                return value.__get__(obj, owner) if hasattr(value, "__get__") else value
        message = f"{owner.__name__!r} object has no attribute {self.name!r}"
        raise AttributeError(message, name=self.name, obj=target)

    def __set__(self, obj, value):
        vars(obj)[self.name] = value

    def __delete__(self, obj):
        del vars(obj)[self.name]


class _ModuleWithHiddenNames(types.ModuleType):
    def __getattribute__(self, name):
        if name in _of_modules.get(id(self), ()) and _is_hidden_from(sys._getframe(1)):
            raise AttributeError(f"the module has no attribute {name!r}", name=name, obj=self)
        return super().__getattribute__(name)


_of_modules: dict[int, set[str]] = {}


def hide(path):
    """Hide ``module:name`` or ``module:Class.name``."""
    module_name, _, name = path.partition(":")
    module = importlib.import_module(module_name)
    owner, _, attribute = name.rpartition(".")
    if owner:
        cls = getattr(module, owner)
        setattr(cls, attribute, _Hidden(cls, attribute))
    else:
        assert hasattr(module, name), path
        _of_modules.setdefault(id(module), set()).add(name)
        module.__class__ = _ModuleWithHiddenNames
