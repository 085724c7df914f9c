"""Numbers with a range, for the fields of the schema."""

from typing import Annotated, Optional

from annotated_types import Ge, Le, MultipleOf

# OmegaConf reads these annotations itself and does not know ``X | None`` inside ``Annotated``, hence ``Optional``.
Count = Annotated[int, Ge(1), Le(2**31 - 1)]
MaybeCount = Annotated[Optional[int], Ge(1), Le(2**31 - 1)]
SmallCount = Annotated[Optional[int], Ge(1), Le(1_000_000)]
Share = Annotated[float, Ge(0.0), Le(1.0)]
# A float so that 5e8 can be written for 500000000; emitted as an int.
SomeElements = Annotated[Optional[float], Ge(1), Le(2**62), MultipleOf(1)]
MaybeElements = Annotated[Optional[float], Ge(0), Le(2**62), MultipleOf(1)]
MaybeShare = Annotated[Optional[float], Ge(0.0), Le(1.0)]
