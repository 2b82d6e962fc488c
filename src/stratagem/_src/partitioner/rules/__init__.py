"""How each operation of a whole program is done by replicas that have parts of its operands."""
