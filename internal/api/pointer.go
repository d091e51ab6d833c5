package api

// SetDefault gives a field that has no value a default.
func SetDefault[T any](field **T, value T) {
	if *field == nil {
		*field = &value
	}
}

// SetIfZero gives a field that is no pointer a default.
func SetIfZero[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}

// ValueOf a field; zero when it has none.
func ValueOf[T any](field *T) T {
	if field == nil {
		var zero T
		return zero
	}
	return *field
}
