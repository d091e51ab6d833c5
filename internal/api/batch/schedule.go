package batch

import (
	"fmt"
	"math/bits"
	"strconv"
	"strings"
	"time"
)

// Schedule is when a CronJob runs: the five fields of cron, or "@every" and a
// duration. See https://kubernetes.io/docs/concepts/workloads/controllers/cron-jobs/#schedule-syntax
type Schedule struct {
	// every, when not zero, is all there is.
	every time.Duration
	// Bit n is set when the field may be n.
	minute, hour, day, month, weekday uint64
	// anyDay and anyWeekday tell that the field began with a star: if
	// neither does, either of them suffices.
	anyDay, anyWeekday bool
}

// limits of a field and the names that it may use for numbers.
type limits struct {
	min, max int
	names    map[string]int
}

var (
	minutes  = limits{0, 59, nil}
	hours    = limits{0, 23, nil}
	days     = limits{1, 31, nil}
	months   = limits{1, 12, names(1, "jan feb mar apr may jun jul aug sep oct nov dec")}
	weekdays = limits{0, 6, names(0, "sun mon tue wed thu fri sat")}
)

func names(from int, list string) map[string]int {
	out := map[string]int{}
	for i, name := range strings.Fields(list) {
		out[name] = from + i
	}
	return out
}

// ParseSchedule reads a schedule without a time zone.
func ParseSchedule(s string) (Schedule, error) {
	if strings.HasPrefix(s, "@") {
		return parseDescriptor(s)
	}
	fields := strings.Fields(s)
	if len(fields) != 5 {
		return Schedule{}, fmt.Errorf("expected exactly 5 fields, found %d: %s", len(fields), fields)
	}
	var out Schedule
	for i, f := range []struct {
		limits
		bits *uint64
		any  *bool
	}{
		{minutes, &out.minute, nil},
		{hours, &out.hour, nil},
		{days, &out.day, &out.anyDay},
		{months, &out.month, nil},
		{weekdays, &out.weekday, &out.anyWeekday},
	} {
		set, star, err := f.parse(fields[i])
		if err != nil {
			return Schedule{}, err
		}
		*f.bits = set
		if f.any != nil {
			*f.any = star
		}
	}
	return out, nil
}

func parseDescriptor(s string) (Schedule, error) {
	switch s {
	case "@yearly", "@annually":
		return ParseSchedule("0 0 1 1 *")
	case "@monthly":
		return ParseSchedule("0 0 1 * *")
	case "@weekly":
		return ParseSchedule("0 0 * * 0")
	case "@daily", "@midnight":
		return ParseSchedule("0 0 * * *")
	case "@hourly":
		return ParseSchedule("0 * * * *")
	}
	if rest, ok := strings.CutPrefix(s, "@every "); ok {
		d, err := time.ParseDuration(rest)
		if err != nil {
			return Schedule{}, fmt.Errorf("failed to parse duration %s: %w", s, err)
		}
		// Less than a second and parts of one cannot be kept.
		return Schedule{every: max(d.Truncate(time.Second), time.Second)}, nil
	}
	return Schedule{}, fmt.Errorf("unrecognized descriptor: %s", s)
}

// parse reads a list of ranges.
func (l limits) parse(field string) (set uint64, star bool, err error) {
	for _, part := range strings.FieldsFunc(field, func(r rune) bool { return r == ',' }) {
		more, any, err := l.parseRange(part)
		if err != nil {
			return 0, false, err
		}
		set |= more
		star = star || any
	}
	return set, star, nil
}

// parseRange reads number, number-number, or *, with a step or without.
func (l limits) parseRange(s string) (set uint64, star bool, err error) {
	span, step, hasStep := strings.Cut(s, "/")
	if strings.Count(s, "/") > 1 {
		return 0, false, fmt.Errorf("too many slashes: %s", s)
	}
	low, high, isRange := strings.Cut(span, "-")
	if strings.Count(span, "-") > 1 {
		return 0, false, fmt.Errorf("too many hyphens: %s", s)
	}
	var from, to int
	if low == "*" || low == "?" {
		from, to, star = l.min, l.max, true
	} else {
		if from, err = l.number(low); err != nil {
			return 0, false, err
		}
		to = from
		if isRange {
			if to, err = l.number(high); err != nil {
				return 0, false, err
			}
		}
	}
	by := 1
	if hasStep {
		if by, err = parseInt(step); err != nil {
			return 0, false, err
		}
		if !isRange && !star {
			to = l.max
		}
		if by > 1 {
			// Every so often is a restriction.
			star = false
		}
	}
	switch {
	case from < l.min:
		return 0, false, fmt.Errorf("beginning of range (%d) below minimum (%d): %s", from, l.min, s)
	case to > l.max:
		return 0, false, fmt.Errorf("end of range (%d) above maximum (%d): %s", to, l.max, s)
	case from > to:
		return 0, false, fmt.Errorf("beginning of range (%d) beyond end of range (%d): %s", from, to, s)
	case by == 0:
		return 0, false, fmt.Errorf("step of range should be a positive number: %s", s)
	}
	by = min(by, to-from+1)
	for n := from; n <= to; n += by {
		set |= 1 << n
	}
	return set, star, nil
}

func (l limits) number(s string) (int, error) {
	if n, ok := l.names[strings.ToLower(s)]; ok {
		return n, nil
	}
	return parseInt(s)
}

func parseInt(s string) (int, error) {
	n, err := strconv.Atoi(s)
	if err != nil {
		return 0, fmt.Errorf("failed to parse int from %s: %w", s, err)
	}
	if n < 0 {
		return 0, fmt.Errorf("negative number (%d) not allowed: %s", n, s)
	}
	return n, nil
}

// horizon is how far Next looks: the 29th of February comes within eight
// years, the 30th never.
const horizon = 8

// Next returns the first time after t, in t's time zone, or zero when there is
// none.
func (s Schedule) Next(t time.Time) time.Time {
	if s.every > 0 {
		return t.Add(s.every - time.Duration(t.Nanosecond())).Truncate(time.Second)
	}
	end := t.Year() + horizon
	t = t.Truncate(time.Minute).Add(time.Minute)
	zone := t.Location()
	for t.Year() <= end {
		year, month, day := t.Date()
		if s.month&(1<<month) == 0 {
			t = time.Date(year, month+1, 1, 0, 0, 0, 0, zone)
			continue
		}
		if !s.matchesDay(t) {
			next := time.Date(year, month, day+1, 0, 0, 0, 0, zone)
			if !next.After(t) {
				// The day has no midnight, where clocks change at it.
				next = next.Add(2 * time.Hour)
			}
			t = next
			continue
		}
		if s.hour&(1<<t.Hour()) == 0 {
			t = t.Add(time.Duration(60-t.Minute()) * time.Minute)
			continue
		}
		later := s.minute >> t.Minute()
		if later == 0 {
			t = t.Add(time.Duration(60-t.Minute()) * time.Minute)
			continue
		}
		return t.Add(time.Duration(bits.TrailingZeros64(later)) * time.Minute)
	}
	return time.Time{}
}

func (s Schedule) matchesDay(t time.Time) bool {
	day := s.day&(1<<t.Day()) != 0
	weekday := s.weekday&(1<<t.Weekday()) != 0
	if s.anyDay || s.anyWeekday {
		return day && weekday
	}
	return day || weekday
}
