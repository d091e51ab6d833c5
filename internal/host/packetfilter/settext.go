package packetfilter

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// TextSets returns the elements of the sets of a Ruleset, for transcripts of tests. Sets without elements are omitted. Equal
// elements have equal texts.
func TextSets(family Family, set Ruleset) string {
	var out strings.Builder
	for _, s := range set.Sets {
		var lines []string
		for e := range set.Elements.All {
			if e.Set != s.Name {
				continue
			}
			line := partsText(s.Key, family, e.Key)
			if s.Verdicts {
				line += " : " + verdictText(e.Verdict.Table, e.Verdict.Name)
			} else if e.Value != "" {
				line += " : " + partsText(s.Value, family, e.Value)
			}
			if e.Comment != "" {
				line += " comment " + strconv.Quote(e.Comment)
			}
			lines = append(lines, "\t"+line+"\n")
		}
		if len(lines) > 0 {
			slices.Sort(lines)
			fmt.Fprintf(&out, "%s:\n%s", s.nftName(), strings.Join(lines, ""))
		}
	}
	return out.String()
}

// partsText returns the parts of a key or value.
func partsText(types []Type, family Family, parts string) string {
	var words []string
	for _, t := range types {
		data := []byte(parts[:4*t.words(family)])
		parts = parts[len(data):]
		switch t {
		case Address:
			a, _ := netip.AddrFromSlice(data)
			words = append(words, a.String())
		case Protocol:
			words = append(words, protocolName(data[0]))
		case Port:
			words = append(words, strconv.Itoa(int(binary.BigEndian.Uint16(data))))
		default:
			words = append(words, strconv.Itoa(int(binary.NativeEndian.Uint32(data))))
		}
	}
	return strings.Join(words, " . ")
}

// protocolName returns the name of a protocol.
func protocolName(number byte) string {
	for _, name := range []string{"tcp", "udp", "sctp"} {
		if protocolNumber(name) == number {
			return name
		}
	}
	return strconv.Itoa(int(number))
}
