package client

import "strconv"

// Newer reports whether resource version a is later than b. Both must be of the same kind of
// object. Resource versions are increasing numbers. If one of them is not a number, such as the
// empty version, Newer only reports whether they differ.
func Newer(a, b string) bool {
	x, errA := strconv.ParseUint(a, 10, 64)
	y, errB := strconv.ParseUint(b, 10, 64)
	if errA != nil || errB != nil {
		return a != b
	}
	return x > y
}
