package nodelogs

import (
	"errors"
	"fmt"
	"net/url"
	"os"
	"regexp"
	"regexp/syntax"
	"strconv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// maxTailLines, maxServiceLength and maxServices limit what a client can request in one query of node logs, as in
// upstream.
const (
	maxTailLines     = 100000
	maxServiceLength = 256
	maxServices      = 4
)

// unsafeCharacters matches characters that are not allowed in service names, because these become arguments
// of commands.
var unsafeCharacters = regexp.MustCompile(`[^a-zA-Z\-_.:0-9@]+`)

// query is a request for node logs: for the logs of services, filtered by options, or for a file.
type query struct {
	services, files []string
	options
}

// options filter the logs of services. Nil and empty fields do not filter.
type options struct {
	since, until *time.Time
	tail, boot   *int
	pattern      string
}

// any reports whether an option is set.
func (o options) any() bool { return o != options{} }

// parse returns the query that the parameters of a request specify, or nil if there are none of a query. A time
// or number that cannot be parsed and an empty query are errors.
func parse(values url.Values) (*query, error) {
	var q query
	var errs field.ErrorList
	names, given := values["query"]
	for _, name := range names {
		switch {
		case strings.ContainsAny(name, `/\`):
			q.files = append(q.files, name)
		case strings.TrimSpace(name) != "":
			q.services = append(q.services, name)
		}
	}
	if given && len(q.files) == 0 && len(q.services) == 0 {
		errs = append(errs, field.Invalid(field.NewPath("query"), names, "may not be empty"))
	}
	moment := func(name string, to **time.Time) {
		text := values.Get(name)
		if text == "" {
			return
		}
		t, err := time.Parse(time.RFC3339, text)
		if err != nil {
			errs = append(errs, field.Invalid(field.NewPath(name), text, "invalid time format"))
			return
		}
		*to = &t
	}
	moment("sinceTime", &q.since)
	moment("untilTime", &q.until)
	number := func(name string, to **int) {
		text := values.Get(name)
		if text == "" {
			return
		}
		n, err := strconv.Atoi(text)
		if err != nil {
			errs = append(errs, field.Invalid(field.NewPath(name), text, err.Error()))
			return
		}
		*to = &n
	}
	number("boot", &q.boot)
	number("tailLines", &q.tail)
	q.pattern = values.Get("pattern")
	if len(errs) > 0 {
		return nil, errs.ToAggregate()
	}
	if !given && !q.any() {
		return nil, nil
	}
	return &q, nil
}

// check returns an error that describes all invalid parts of the query. root is the directory of log files.
func (q *query) check(root *os.Root) error {
	var errs field.ErrorList
	at := field.NewPath("query")
	for _, s := range q.services {
		if err := safe(s); err != nil {
			errs = append(errs, field.Invalid(at, s, err.Error()))
		}
	}
	if len(q.services) > maxServices {
		errs = append(errs, field.TooMany(at, len(q.services), maxServices))
	}
	switch {
	case len(q.files) == 0 && len(q.services) == 0:
		errs = append(errs, field.Required(at, "cannot be empty with options"))
	case len(q.files) > 0 && len(q.services) > 0:
		errs = append(errs, field.Invalid(at, fmt.Sprintf("%v, %v", q.files, q.services), "cannot specify a file and service"))
	case len(q.files) > 1:
		errs = append(errs, field.Invalid(at, q.files, "cannot specify more than one file"))
	case len(q.files) == 1 && q.any():
		errs = append(errs, field.Invalid(at, q.files, "cannot specify file with options"))
	case len(q.files) == 1:
		if _, err := root.Stat(relativePath(q.files[0])); err != nil {
			errs = append(errs, field.Invalid(at, q.files, err.Error()))
		}
	}
	if q.since != nil && q.until != nil && q.since.After(*q.until) {
		errs = append(errs, field.Invalid(field.NewPath("untilTime"), q.until, "must be after `sinceTime`"))
	}
	if q.boot != nil && *q.boot > 0 {
		errs = append(errs, field.Invalid(field.NewPath("boot"), *q.boot, "must be less than 1"))
	}
	if q.tail != nil {
		if msgs := validation.IsInRange(*q.tail, 0, maxTailLines); len(msgs) > 0 {
			errs = append(errs, field.Invalid(field.NewPath("tailLines"), *q.tail, msgs[0]))
		}
	}
	if _, err := syntax.Parse(q.pattern, syntax.Perl); err != nil {
		errs = append(errs, field.Invalid(field.NewPath("pattern"), q.pattern, err.Error()))
	}
	return errs.ToAggregate()
}

// relativePath returns the path of the queried file relative to the log directory. A leading slash only marks
// the name as that of a file.
func relativePath(file string) string {
	file = strings.TrimLeft(strings.ReplaceAll(file, `\`, "/"), "/")
	if file == "" {
		return "."
	}
	return file
}

// safe returns an error if the name of a service, which becomes an argument of a command, is too long or has
// unsafe characters.
func safe(service string) error {
	if len(service) > maxServiceLength {
		return fmt.Errorf("length must be less than %d", maxServiceLength)
	}
	if unsafeCharacters.MatchString(service) {
		return errors.New("input contains unsupported characters")
	}
	return nil
}

// arguments returns the arguments of journalctl for the logs of services.
func (o options) arguments(services []string) []string {
	const layout = "2006-01-02 15:04:05 UTC"
	args := []string{"--utc", "--no-pager", "--output=short-precise"}
	if o.since != nil {
		args = append(args, "--since="+o.since.UTC().Format(layout))
	}
	if o.until != nil {
		args = append(args, "--until="+o.until.UTC().Format(layout))
	}
	if o.tail != nil {
		args = append(args, "--pager-end", fmt.Sprintf("--lines=%d", *o.tail))
	}
	for _, s := range services {
		args = append(args, "--unit="+s)
	}
	if o.pattern != "" {
		args = append(args, "--grep="+o.pattern)
	}
	if o.boot != nil {
		args = append(args, "--boot", strconv.Itoa(*o.boot))
	}
	return args
}
