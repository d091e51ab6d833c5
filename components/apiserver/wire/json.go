package wire

// Untyped removes the leading type meta of this kind from a JSON object. Other JSON is returned
// unchanged. The result shares no memory with data unless it is data.
func (k *Kind) Untyped(data []byte) []byte {
	if len(data) <= len(k.json) || string(data[:len(k.json)]) != string(k.json) {
		return data
	}
	rest := data[len(k.json):]
	if rest[0] == ',' {
		rest = rest[1:]
	}
	out := make([]byte, 0, len(rest)+1)
	return append(append(out, '{'), rest...)
}

// AppendJSON appends the JSON object untyped with leading type meta.
func (k *Kind) AppendJSON(dst, untyped []byte) []byte {
	dst = append(dst, k.json...)
	if len(untyped) > 2 {
		dst = append(dst, ',')
		return append(dst, untyped[1:]...)
	}
	return append(dst, '}')
}

// JSONSize returns the number of bytes that AppendJSON appends.
func (k *Kind) JSONSize(untyped []byte) int {
	if len(untyped) > 2 {
		return len(k.json) + len(untyped)
	}
	return len(k.json) + 1
}

// AppendJSONEvent appends a JSON watch event, terminated by a newline as in upstream.
func (k *Kind) AppendJSONEvent(dst []byte, event string, untyped []byte) []byte {
	dst = append(dst, `{"type":"`...)
	dst = append(dst, event...)
	dst = append(dst, `","object":`...)
	dst = k.AppendJSON(dst, untyped)
	return append(dst, '}', '\n')
}

// AppendJSONEventObject is AppendJSONEvent for JSON that contains its type meta.
func AppendJSONEventObject(dst []byte, event string, object []byte) []byte {
	dst = append(dst, `{"type":"`...)
	dst = append(dst, event...)
	dst = append(dst, `","object":`...)
	dst = append(dst, object...)
	return append(dst, '}', '\n')
}

// AppendJSONListHead appends the beginning of a list up to the opening bracket of its items. A
// negative remaining is omitted. next must not need escaping, which is true for continue tokens.
func (k *Kind) AppendJSONListHead(dst []byte, revision int64, next string, remaining int64) []byte {
	return k.appendListHead(dst, revision, next, remaining, false)
}

// AppendJSONListHeadNext is like AppendJSONListHead, but includes the continue token even if next is
// empty.
func (k *Kind) AppendJSONListHeadNext(dst []byte, revision int64, next string, remaining int64) []byte {
	return k.appendListHead(dst, revision, next, remaining, true)
}

func (k *Kind) appendListHead(dst []byte, revision int64, next string, remaining int64, always bool) []byte {
	dst = append(dst, k.json...)
	if revision == 0 { // computed objects have no list metadata
		return append(dst, `,"metadata":{},"items":[`...)
	}
	dst = append(dst, `,"metadata":{"resourceVersion":"`...)
	dst = appendInt(dst, revision)
	dst = append(dst, '"')
	if next != "" || always {
		dst = append(dst, `,"continue":"`...)
		dst = append(dst, next...)
		dst = append(dst, '"')
	}
	if remaining >= 0 {
		dst = append(dst, `,"remainingItemCount":`...)
		dst = appendInt(dst, remaining)
	}
	return append(dst, `},"items":[`...)
}

// AppendJSONHead appends the beginning of an object, its type meta, without a trailing comma or
// brace.
func (k *Kind) AppendJSONHead(dst []byte) []byte { return append(dst, k.json...) }
