package top

import "unicode/utf8"

// sequences are the names of keys that a terminal sends as escape sequences.
func sequences() map[string]string {
	return map[string]string{
		"\x1b[A": "up", "\x1b[B": "down", "\x1b[C": "right", "\x1b[D": "left", "\x1bOA": "up", "\x1bOB": "down", "\x1bOC": "right", "\x1bOD": "left",
		"\x1b[H": "home", "\x1b[F": "end", "\x1bOH": "home", "\x1bOF": "end", "\x1b[1~": "home", "\x1b[4~": "end", "\x1b[5~": "pageup", "\x1b[6~": "pagedown",
	}
}

// decodeKeys returns the names of the keys in input, which was read from a terminal at one time: "up", "esc", "enter" or
// the character itself. Unknown sequences are omitted.
func decodeKeys(input []byte) []string {
	known := sequences()
	var keys []string
	for len(input) > 0 {
		switch b := input[0]; {
		case b == 0x1b && len(input) > 1 && (input[1] == '[' || input[1] == 'O'):
			end := 2
			for end < len(input) && (input[end] < 0x40 || input[end] > 0x7e) {
				end++
			}
			end = min(end+1, len(input))
			if name := known[string(input[:end])]; name != "" {
				keys = append(keys, name)
			}
			input = input[end:]
			continue
		case b == 0x1b:
			keys = append(keys, "esc")
		case b == '\r' || b == '\n':
			keys = append(keys, "enter")
		case b == 0x7f || b == '\b':
			keys = append(keys, "backspace")
		case b == 0x03:
			keys = append(keys, "ctrl+c")
		case b >= ' ':
			r, size := utf8.DecodeRune(input)
			keys = append(keys, string(r))
			input = input[size:]
			continue
		}
		input = input[1:]
	}
	return keys
}
