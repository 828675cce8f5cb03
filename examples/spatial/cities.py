"""Forty cities: name, longitude, latitude."""

CITIES = [
    ("Accra", -0.19, 5.60), ("Algiers", 3.06, 36.75), ("Athens", 23.73, 37.98),
    ("Auckland", 174.76, -36.85), ("Baghdad", 44.37, 33.32), ("Bangkok", 100.50, 13.76),
    ("Beijing", 116.41, 39.90), ("Berlin", 13.40, 52.52), ("Bogota", -74.07, 4.71),
    ("Brussels", 4.35, 50.85), ("Budapest", 19.04, 47.50), ("Buenos Aires", -58.38, -34.60),
    ("Cairo", 31.24, 30.04), ("Cape Town", 18.42, -33.92), ("Chicago", -87.63, 41.88),
    ("Dakar", -17.47, 14.72), ("Delhi", 77.10, 28.70), ("Dublin", -6.26, 53.35),
    ("Hanoi", 105.83, 21.03), ("Havana", -82.37, 23.11), ("Helsinki", 24.94, 60.17),
    ("Istanbul", 28.98, 41.01), ("Jakarta", 106.85, -6.21), ("Lima", -77.04, -12.05),
    ("Lisbon", -9.14, 38.72), ("London", -0.13, 51.51), ("Madrid", -3.70, 40.42),
    ("Manila", 120.98, 14.60), ("Mexico City", -99.13, 19.43), ("Nairobi", 36.82, -1.29),
    ("New York", -74.01, 40.71), ("Paris", 2.35, 48.86), ("Prague", 14.44, 50.08),
    ("Rome", 12.50, 41.90), ("Santiago", -70.67, -33.45), ("Seoul", 126.98, 37.57),
    ("Sydney", 151.21, -33.87), ("Tokyo", 139.69, 35.69), ("Vienna", 16.37, 48.21),
    ("Warsaw", 21.01, 52.23),
]  # fmt: skip
NAMES = [name for name, _, _ in CITIES]
POINTS = [(x, y, x, y) for _, x, y in CITIES]
