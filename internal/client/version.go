package client

import "strconv"

// Newer tells whether resource version a is later than b, both of one kind. They are
// numbers that grow; of one that is no number, such as that of nothing, it can only be
// told that it is another.
func Newer(a, b string) bool {
	x, errA := strconv.ParseUint(a, 10, 64)
	y, errB := strconv.ParseUint(b, 10, 64)
	if errA != nil || errB != nil {
		return a != b
	}
	return x > y
}
