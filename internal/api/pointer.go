package api

// SetDefault sets a field to a default value if it is nil.
func SetDefault[T any](field **T, value T) {
	if *field == nil {
		*field = &value
	}
}

// SetIfZero sets a non-pointer field to a default value if it is zero.
func SetIfZero[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}

// ValueOf returns the value of a pointer field, or zero if it is nil.
func ValueOf[T any](field *T) T {
	if field == nil {
		var zero T
		return zero
	}
	return *field
}
