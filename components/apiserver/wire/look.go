package wire

// Look returns a field of a raw object that the numbers in path lead to, through
// messages, without decoding anything else; nil when it is not set. It is a part
// of raw.
func Look(raw []byte, path []int) ([]byte, error) {
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
		// Of fields that are there twice the last one counts, and of messages
		// what the last has that sets it.
		if len(path) > 1 {
			if value, err = Look(value, path[1:]); err != nil {
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

// Labels are those of a raw object, looked up without decoding it. It implements
// labels.Labels of apimachinery. What is malformed is not there.
type Labels struct{ raw []byte }

// LabelsOf returns the labels of a raw object, of which they are a part.
func LabelsOf(raw []byte) Labels { return Labels{raw} }

// Has tells whether there is a label.
func (l Labels) Has(label string) bool {
	_, ok := l.Lookup(label)
	return ok
}

// Get returns a label's value, "" if there is none.
func (l Labels) Get(label string) string {
	value, _ := l.Lookup(label)
	return value
}

// Field numbers of labels: ObjectMeta.labels, and what all maps have.
const (
	fieldMetadata = 1
	fieldLabels   = 11
	fieldKey      = 1
	fieldValue    = 2
)

// Lookup returns a label's value and whether there is one.
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

// mapEntry splits an entry of a map of strings.
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
