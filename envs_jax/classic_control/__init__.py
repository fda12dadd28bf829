"""Classic control problems, equal to gymnasium's step by step."""

from envs_jax.classic_control.acrobot import Acrobot
from envs_jax.classic_control.cartpole import CartPole
from envs_jax.classic_control.mountain_car import MountainCar, MountainCarContinuous
from envs_jax.classic_control.pendulum import Pendulum

__all__ = ["Acrobot", "CartPole", "MountainCar", "MountainCarContinuous", "Pendulum"]
