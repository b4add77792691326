"""`decodegap doctor`: is this machine fit to measure?"""

from decodegap.doctor.examination import Examination, Problem, examine

__all__ = ["Examination", "Problem", "examine"]
