package wire

// Untyped removes the kind and apiVersion of k from the beginning of a JSON object. JSON that does
// not start with them is returned unchanged. Otherwise the result is a copy.
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

// AppendJSON appends a complete JSON object to dst: kind and apiVersion of k, and the fields of
// untyped, a JSON object without them.
func (k *Kind) AppendJSON(dst, untyped []byte) []byte {
	dst = append(dst, k.json...)
	if len(untyped) > 2 {
		dst = append(dst, ',')
		return append(dst, untyped[1:]...)
	}
	return append(dst, '}')
}

// JSONSize returns the number of bytes that AppendJSON appends for untyped.
func (k *Kind) JSONSize(untyped []byte) int {
	if len(untyped) > 2 {
		return len(k.json) + len(untyped)
	}
	return len(k.json) + 1
}

// AppendJSONEvent appends a JSON watch event of type event (ADDED, …) to dst. untyped is the JSON
// of the object without kind and apiVersion. A newline terminates the event, as in upstream.
func (k *Kind) AppendJSONEvent(dst []byte, event string, untyped []byte) []byte {
	dst = append(dst, `{"type":"`...)
	dst = append(dst, event...)
	dst = append(dst, `","object":`...)
	dst = k.AppendJSON(dst, untyped)
	return append(dst, '}', '\n')
}

// AppendJSONEventObject appends a JSON watch event to dst, as AppendJSONEvent does. object is the complete JSON of the
// object, with kind and apiVersion.
func AppendJSONEventObject(dst []byte, event string, object []byte) []byte {
	dst = append(dst, `{"type":"`...)
	dst = append(dst, event...)
	dst = append(dst, `","object":`...)
	dst = append(dst, object...)
	return append(dst, '}', '\n')
}

// AppendJSONListHead appends the beginning of a list of kind k up to the opening bracket of its
// items. revision is the list's resourceVersion; zero, for objects that are not stored, omits all
// list metadata. next is the continue token, which needs no escaping. A negative remaining
// (remainingItemCount) is omitted.
func (k *Kind) AppendJSONListHead(dst []byte, revision int64, next string, remaining int64) []byte {
	return k.appendListHead(dst, revision, next, remaining, false)
}

// AppendJSONListHeadNext is like AppendJSONListHead, but includes the continue token even if next is
// empty.
func (k *Kind) AppendJSONListHeadNext(dst []byte, revision int64, next string, remaining int64) []byte {
	return k.appendListHead(dst, revision, next, remaining, true)
}

// appendListHead appends the JSON of a list up to its first item: kind, apiVersion and metadata. It omits the
// continue token next if it is empty, unless always is set, and the number of remaining items if it is negative. With
// revision 0, the metadata is empty.
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

// AppendJSONHead appends the opening brace, kind and apiVersion of an object, without a trailing
// comma.
func (k *Kind) AppendJSONHead(dst []byte) []byte { return append(dst, k.json...) }
