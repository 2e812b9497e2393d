"""Ellipsoids of norms: axes from the secular equation, support functions, push-forwards; outputs around one input."""

from normscope.geometry.ellipsoid import BallImage, Ellipsoid, EllipsoidSum, ellipsoid_of
from normscope.geometry.neighbourhood import Neighbourhood

__all__ = ["BallImage", "Ellipsoid", "EllipsoidSum", "Neighbourhood", "ellipsoid_of"]
