package record

import (
	"bytes"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestParseCRI(t *testing.T) {
	const stamp = "2026-11-28T22:00:00.5Z"
	at := time.Date(2026, 11, 28, 22, 0, 0, 500_000_000, time.UTC).UnixNano()
	for line, want := range map[string]string{
		stamp + " stdout F text":                            "stdout false text",
		stamp + " stderr P a b ":                            "stderr true a b ",
		stamp + " stdout F ":                                "stdout false ",
		stamp + " stdout F":                                 "stdout false ",
		stamp + " stdout P:tag:other text":                  "stdout true text",
		"2026-11-28T23:00:00.500000000+01:00 stdout F a\tb": "stdout false a\tb",
		"":                         "",
		"text":                     "",
		stamp + " stdout":          "",
		stamp + " stdin F text":    "",
		stamp + " stdout X text":   "",
		"2026-11-28 stdout F text": "",
		`{"log":"text\n","stream":"stdout","time":"` + stamp + `"}`: "",
	} {
		e, err := ParseCRI([]byte(line))
		if want == "" {
			if err == nil {
				t.Errorf("%q: accepted", line)
			}
			continue
		}
		if got := fmt.Sprintf("%s %t %s", e.Stream, e.Partial, e.Text); err != nil || got != want || e.Time != at {
			t.Errorf("%q: %q at %d, %v, want %q at %d", line, got, e.Time, err, want, at)
		}
	}
}

func FuzzParseCRI(f *testing.F) {
	f.Add([]byte("2026-11-28T22:00:00.5Z stdout F text"))
	f.Fuzz(func(t *testing.T, line []byte) {
		e, err := ParseCRI(line)
		if err == nil && !bytes.HasSuffix(line, e.Text) {
			t.Errorf("%q: text %q", line, e.Text)
		}
		ParsePlain(line, 7)
	})
}

func TestParsePlain(t *testing.T) {
	at := time.Date(2026, 11, 28, 22, 0, 0, 5_000_000, time.UTC).UnixNano()
	for line, want := range map[string]int64{
		`time=2026-11-28T22:00:00.005Z level=INFO msg=a`:     at,
		`{"time":"2026-11-28T22:00:00.005Z","level":"INFO"}`: at,
		`time=yesterday msg=a`:                               7,
		`panic: x`:                                           7,
		``:                                                   7,
	} {
		if e := ParsePlain([]byte(line), 7); e.Time != want || string(e.Text) != line {
			t.Errorf("%q: %d %q", line, e.Time, e.Text)
		}
	}
}

// TestJoiner adds lines "STREAM TAG TEXT" and compares the records. A line "expire" completes all records.
func TestJoiner(t *testing.T) {
	for _, c := range []struct {
		name, start string
		lines       []string
		want        []string
		pending     int64 // position of the first pending line, or -1
	}{
		{"lines", "", []string{"o F a", "e F b"}, []string{"o a", "e b"}, -1},
		{"partial", "", []string{"o P a", "o P b", "o F c"}, []string{"o abc"}, -1},
		{"partial of two streams", "", []string{"o P a", "e F x", "e P y", "o F b", "e F z"}, []string{"e x", "o ab", "e yz"}, -1},
		{"pending", "", []string{"e F a", "o P b", "e F c"}, []string{"e a", "e c"}, 1},
		{"the oldest is pending", "", []string{"e P a", "o P b", "e F c"}, []string{"e ac"}, 1},
		{"expired partial", "", []string{"o P a", "expire", "o F b"}, []string{"o a", "o b"}, -1},
		{"several lines", `^\d`, []string{"o F 1 a", "o F  at x", "o F  at y", "o F 2 b", "e F c"}, []string{"o 1 a| at x| at y"}, 3},
		{"expired lines", `^\d`, []string{"o F 1 a", "o F  at x", "expire", "o F  at y"}, []string{"o 1 a| at x"}, 3},
		{"without first line", `^\d`, []string{"o F  at x", "o F 2 b", "o F 3"}, []string{"o  at x", "o 2 b"}, 2},
		{"partial in several lines", `^\d`, []string{"o F 1 a", "o P  b", "o F c", "o F 2"}, []string{"o 1 a| bc"}, 3},
		{"partial waits", `^\d`, []string{"o F 1 a", "o P  b"}, nil, 0},
	} {
		var start *regexp.Regexp
		if c.start != "" {
			start = regexp.MustCompile(c.start)
		}
		j := NewJoiner(start)
		var records []Record
		for i, line := range c.lines {
			if line == "expire" {
				records = j.Expire(records, 1000)
				continue
			}
			e := Entry{Partial: line[2] == 'P', Record: Record{Stream: Stdout, Text: []byte(line[4:])}}
			if line[0] == 'e' {
				e.Stream = Stderr
			}
			records = j.Add(records, e, Position{Offset: int64(i)}, int64(i))
		}
		var got []string
		for _, r := range records {
			stream := map[Stream]string{Stdout: "o", Stderr: "e"}[r.Stream]
			got = append(got, stream+" "+strings.ReplaceAll(string(r.Text), "\n", "|"))
		}
		at, ok := j.Pending()
		if !ok {
			at.Offset = -1
		}
		if !slices.Equal(got, c.want) || at.Offset != c.pending {
			t.Errorf("%s: %q pending %d, want %q pending %d", c.name, got, at.Offset, c.want, c.pending)
		}
	}
}

// TestJoinerLimit checks that a record does not grow without limit.
func TestJoinerLimit(t *testing.T) {
	for name, partial := range map[string]bool{"partial": true, "several lines": false} {
		j := NewJoiner(regexp.MustCompile("^start"))
		var records []Record
		for i := range 100 {
			records = j.Add(records, Entry{Partial: partial, Record: Record{Text: bytes.Repeat([]byte("x"), 16<<10)}}, Position{Offset: int64(i)}, 0)
		}
		for _, r := range records {
			if len(r.Text) > MaxRecord+16<<10 {
				t.Errorf("%s: a record of %d bytes", name, len(r.Text))
			}
		}
		if len(records) < 4 {
			t.Errorf("%s: %d records", name, len(records))
		}
	}
}
