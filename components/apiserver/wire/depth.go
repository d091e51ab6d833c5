package wire

import "google.golang.org/protobuf/encoding/protowire"

// DeeperThan reports whether the protobuf messages in data may be nested more than most levels
// deep. Decoders of recursive types need stack for each level, and Go terminates a process whose
// stack becomes too large, so such data must be rejected. DeeperThan only parses the wire format:
// it treats any field that could be a message as one.
func DeeperThan(data []byte, most int) bool {
	// The remaining data of each enclosing message.
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
				n = -1 // no Kubernetes type uses groups
			} else {
				n = protowire.ConsumeFieldValue(number, kind, data)
			}
			if n < 0 {
				data, inner = nil, nil // not a message, or one that a decoder rejects
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
			// An empty field. Continue with the message.
		case len(rest) == 0:
			return false
		default:
			data = rest[len(rest)-1]
			rest = rest[:len(rest)-1]
		}
	}
}
