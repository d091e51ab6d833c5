package wire

import "google.golang.org/protobuf/encoding/protowire"

// Deeper tells whether messages may be nested in data more than most levels
// deep. It looks at the bytes alone: what could be a message is taken for one.
// The decoders of types that contain themselves use the stack for each level,
// and Go ends a process whose stack has grown too large.
func Deeper(data []byte, most int) bool {
	// Where each of the messages around the present one goes on.
	var rest [][]byte
	for {
		var inner []byte
		for len(data) > 0 && inner == nil {
			number, kind, n := protowire.ConsumeTag(data)
			if n < 0 || number <= 0 {
				data = nil
				break
			}
			data = data[n:]
			if kind == protowire.BytesType {
				inner, n = protowire.ConsumeBytes(data)
			} else if kind == protowire.StartGroupType || kind == protowire.EndGroupType {
				n = -1 // no type of Kubernetes has them
			} else {
				n = protowire.ConsumeFieldValue(number, kind, data)
			}
			if n < 0 {
				data, inner = nil, nil // no message, or none that a decoder goes on with
				break
			}
			data = data[n:]
		}
		switch {
		case len(inner) > 0:
			rest = append(rest, data)
			if len(rest) > most {
				return true
			}
			data = inner
		case len(data) > 0:
			// An empty field; the message goes on.
		case len(rest) == 0:
			return false
		default:
			data = rest[len(rest)-1]
			rest = rest[:len(rest)-1]
		}
	}
}
