package record

import "regexp"

// MaxRecord is the size in bytes from which on a Joiner completes a record, although more lines would belong to it.
const MaxRecord = 256 << 10

// Joiner joins the entries of one source to records: parts of long lines and, if it has a rule, the lines of messages with
// several lines. It is not safe for concurrent use.
type Joiner struct {
	start *regexp.Regexp // the first line of a message; nil if each line is a message
	// partial and open are the incomplete line, and the message that more lines may follow, by stream.
	partial, open [Stderr + 1]pending
	added         uint64 // number of entries
}

// pending is an incomplete record. It is empty if exists is false.
type pending struct {
	Record
	exists bool
	at     Position // of the first entry
	number uint64   // of the first entry, for comparing positions
	last   int64    // time at which the last entry was added, in nanoseconds
}

// NewJoiner returns a Joiner. start matches the first line of each message; it is nil if each line is a message.
func NewJoiner(start *regexp.Regexp) *Joiner { return &Joiner{start: start} }

// Add adds the entry that begins at the position at, and appends the records that it completes to out. The texts of records may
// refer to the text of e. now is the current time in nanoseconds, for Expire.
func (j *Joiner) Add(out []Record, e Entry, at Position, now int64) []Record {
	j.added++
	p := &j.partial[e.Stream]
	number := j.added
	if p.exists || e.Partial {
		if !p.exists {
			*p = pending{Record: Record{Time: e.Time, Stream: e.Stream}, exists: true, at: at, number: number}
		}
		p.Text = append(p.Text, e.Text...)
		p.last = now
		if e.Partial && len(p.Text) < MaxRecord {
			return out
		}
		e.Record, at, number = p.Record, p.at, p.number
		*p = pending{}
	}
	if j.start == nil {
		return append(out, e.Record)
	}
	o := &j.open[e.Stream]
	if o.exists && (j.start.Match(e.Text) || len(o.Text)+len(e.Text) >= MaxRecord) {
		out = append(out, o.Record)
		*o = pending{}
	}
	if !o.exists {
		*o = pending{Record: Record{Time: e.Time, Stream: e.Stream}, exists: true, at: at, number: number}
		o.Text = append(o.Text, e.Text...)
	} else {
		o.Text = append(append(o.Text, '\n'), e.Text...)
	}
	o.last = now
	return out
}

// Expire appends the records to out that have got no entry since the time before, in nanoseconds.
func (j *Joiner) Expire(out []Record, before int64) []Record {
	for stream := range j.open {
		o, p := &j.open[stream], &j.partial[stream]
		if p.exists && p.last >= before {
			continue // it may belong to the open message
		}
		if o.exists && o.last < before {
			out = append(out, o.Record)
			*o = pending{}
		}
		if p.exists && !o.exists {
			out = append(out, p.Record)
			*p = pending{}
		}
	}
	return out
}

// Pending returns the position of the first entry of an incomplete record, or false if there is none.
func (j *Joiner) Pending() (Position, bool) {
	var first *pending
	for _, list := range []*[Stderr + 1]pending{&j.partial, &j.open} {
		for i := range list {
			if p := &list[i]; p.exists && (first == nil || p.number < first.number) {
				first = p
			}
		}
	}
	if first == nil {
		return Position{}, false
	}
	return first.at, true
}
