"""Local SGD and DiLoCo: islands of synchronous workers, loosely coupled between islands."""
