"""Ellipsoids of norms: axes from the secular equation, support functions, push-forwards."""

from normscope.geometry.ellipsoid import BallImage, Ellipsoid, EllipsoidSum, ellipsoid_of

__all__ = ["BallImage", "Ellipsoid", "EllipsoidSum", "ellipsoid_of"]
