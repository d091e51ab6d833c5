package batch

import (
	"strings"
	"testing"
	"time"
)

func TestNext(t *testing.T) {
	for _, test := range []struct{ schedule, from, want string }{
		{"* * * * *", "2026-01-01T00:00:00Z", "2026-01-01T00:01:00Z"},
		{"*/15 * * * *", "2026-01-01T00:46:10Z", "2026-01-01T01:00:00Z"},
		{"5/20 * * * *", "2026-01-01T00:06:00Z", "2026-01-01T00:25:00Z"},
		{"30 8-17/3 * * mon-fri", "2026-01-02T17:31:00Z", "2026-01-05T08:30:00Z"},
		{"0 0 1,15 * 5", "2026-01-03T00:00:00Z", "2026-01-09T00:00:00Z"},
		{"0 0 31 * *", "2026-04-01T00:00:00Z", "2026-05-31T00:00:00Z"},
		{"0 0 29 2 *", "2026-01-01T00:00:00Z", "2028-02-29T00:00:00Z"},
		{"0 0 */2 * 1", "2026-01-05T00:00:00Z", "2026-01-07T00:00:00Z"},
		{"@yearly", "2026-01-01T00:00:00Z", "2027-01-01T00:00:00Z"},
		{"@every 90m", "2026-01-01T00:00:00.5Z", "2026-01-01T01:30:00Z"},
	} {
		s, err := parseSchedule(test.schedule)
		if err != nil {
			t.Fatal(err)
		}
		from, err := time.Parse(time.RFC3339Nano, test.from)
		if err != nil {
			t.Fatal(err)
		}
		if got := s.Next(from).Format(time.RFC3339); got != test.want {
			t.Errorf("%s after %s: %s, want %s", test.schedule, test.from, got, test.want)
		}
	}
	if s, err := parseSchedule("0 0 30 2 *"); err != nil || !s.Next(time.Now()).IsZero() {
		t.Errorf("the 30th of February is %s, %v", s.Next(time.Now()), err)
	}
}

func FuzzParseSchedule(f *testing.F) {
	for _, s := range []string{"* * * * *", "*/5 1-3,7 ? jan-mar sun", "@daily", "@every 1h", "1/0 * * * *", "-1 * * * *", "9-1 * * * *", "1/9223372036854775807 * * * *", "TZ=0", "CRON_TZ=UTC"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		s, err := parseSchedule(text)
		if err != nil {
			return
		}
		from := time.Date(2026, 1, 31, 23, 59, 59, 0, time.UTC)
		if next := s.Next(from); !next.IsZero() && !next.After(from) && !strings.HasPrefix(text, "@every -") {
			t.Errorf("%q: %s is not after %s", text, next, from)
		}
	})
}
