package wire

// LookupField returns the value of the field of a protobuf message at path, the field numbers from the outermost
// message inwards, without decoding anything else. path must not be empty. It returns nil if the field is not set,
// and an error if raw is malformed. The result is a subslice of raw.
func LookupField(raw []byte, path []int) ([]byte, error) {
	var found []byte
	for data := raw; len(data) > 0; {
		number, value, _, rest, err := nextField(data)
		if err != nil {
			return nil, err
		}
		data = rest
		if number != path[0] {
			continue
		}
		// The last occurrence of a field takes precedence. Messages that occur repeatedly are
		// merged.
		if len(path) > 1 {
			if value, err = LookupField(value, path[1:]); err != nil {
				return nil, err
			}
			if value == nil {
				continue
			}
		}
		found = value
	}
	return found, nil
}

// Labels reads the labels of an object from its protobuf message without decoding it. It implements
// labels.Labels of apimachinery. Malformed labels are ignored.
type Labels struct{ raw []byte }

// LabelsOf returns the labels of the object with the protobuf message raw. They share its memory.
func LabelsOf(raw []byte) Labels { return Labels{raw} }

// Has reports whether the object has the label. It returns false if the message is malformed.
func (l Labels) Has(label string) bool {
	_, ok := l.Lookup(label)
	return ok
}

// Get returns the value of a label, or "" if the object does not have the label.
func (l Labels) Get(label string) string {
	value, _ := l.Lookup(label)
	return value
}

// Field numbers: ObjectMeta.labels, and the key and value of map entries.
const (
	fieldMetadata = 1
	fieldLabels   = 11
	fieldKey      = 1
	fieldValue    = 2
)

// Lookup returns the value of a label and whether it exists.
func (l Labels) Lookup(label string) (value string, ok bool) {
	for data := l.raw; len(data) > 0; {
		number, metadata, _, rest, err := nextField(data)
		if err != nil {
			return "", false
		}
		data = rest
		for number == fieldMetadata && len(metadata) > 0 {
			var at int
			var entry []byte
			if at, entry, _, metadata, err = nextField(metadata); err != nil {
				return "", false
			}
			if at != fieldLabels {
				continue
			}
			if k, v, good := mapEntry(entry); good && string(k) == label {
				value, ok = string(v), true
			}
		}
	}
	return value, ok
}

// mapEntry parses an entry of a protobuf map with string keys and values. ok is false if it is
// malformed.
func mapEntry(data []byte) (key, value []byte, ok bool) {
	for len(data) > 0 {
		number, field, _, rest, err := nextField(data)
		if err != nil {
			return nil, nil, false
		}
		switch number {
		case fieldKey:
			key = field
		case fieldValue:
			value = field
		}
		data = rest
	}
	return key, value, true
}
