"""Training that goes on when workers are lost or come: loops with places, values kept, and who has them."""
