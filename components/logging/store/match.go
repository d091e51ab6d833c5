package store

import (
	"bytes"
	"fmt"
	"regexp"
	"regexp/syntax"
	"slices"
	"strings"
	"unicode"

	"k8s.io/apimachinery/pkg/labels"

	"hyperkube/components/logging/record"
)

// Query selects records.
type Query struct {
	// NodeFiles selects the records of log files of the node, and otherwise those of containers are selected.
	NodeFiles bool
	// Namespace, Pod, Container and File select sources by name. Empty fields select all.
	Namespace, Pod, Container, File string
	// Labels selects sources by the labels of their pods. Nil selects all.
	Labels labels.Selector
	// Since and Until are the half-open range of times, in nanoseconds since 1970. Until 0 means no limit.
	Since, Until int64
	// Text selects records by their text. Nil selects all.
	Text *Pattern
	// Tail selects only the newest matching records. Zero selects all.
	Tail int
}

// Matches reports whether the query selects the source.
func (q *Query) Matches(s *record.Source) bool {
	if q.NodeFiles != (s.File != "") || q.File != "" && q.File != s.File {
		return false
	}
	return (q.Namespace == "" || q.Namespace == s.Namespace) && (q.Pod == "" || q.Pod == s.Pod) &&
		(q.Container == "" || q.Container == s.Container) && (q.Labels == nil || q.Labels.Matches(labels.Set(s.Labels)))
}

// matchesRecord reports whether the query selects the record of a source that it selects.
func (q *Query) matchesRecord(r record.Record) bool {
	return r.Time >= q.Since && (q.Until == 0 || r.Time < q.Until) && (q.Text == nil || q.Text.Match(r.Text))
}

// MatchesEntry reports whether the query selects the record. It ignores Tail.
func (q *Query) MatchesEntry(e Entry) bool { return q.Matches(e.Source) && q.matchesRecord(e.Record) }

// overlaps reports whether the query can select records with times from first to last.
func (q *Query) overlaps(first, last int64) bool {
	return first <= last && last >= q.Since && (q.Until == 0 || first < q.Until)
}

// Pattern is a regular expression. It finds records faster than the regular expression alone if all matches contain the same literal text.
type Pattern struct {
	re      *regexp.Regexp
	literal []byte // contained in each match; if fold is set, in lowercase and compared without case
	fold    bool
	whole   bool // a text matches if it contains literal
}

// NewPattern compiles a regular expression. Its error names the invalid expression and can be shown to the user.
func NewPattern(expr string) (*Pattern, error) {
	re, err := regexp.Compile(expr)
	if err != nil {
		return nil, fmt.Errorf("invalid regular expression: %w", err)
	}
	parsed, err := syntax.Parse(expr, syntax.Perl)
	if err != nil {
		return nil, fmt.Errorf("invalid regular expression: %w", err)
	}
	p := &Pattern{re: re, literal: []byte(requiredLiteral(parsed, false))}
	prefix, whole := re.LiteralPrefix()
	p.whole = whole && prefix != "" && prefix == string(p.literal)
	if len(p.literal) == 0 {
		p.literal, p.fold = []byte(requiredLiteral(parsed, true)), true
	}
	return p, nil
}

// Match reports whether the text contains a match.
func (p *Pattern) Match(text []byte) bool {
	return p.canMatch(text) && (p.whole || p.re.Match(text))
}

// canMatch reports whether the text, or one of the records in an encoded block, can match.
func (p *Pattern) canMatch(raw []byte) bool {
	switch {
	case len(p.literal) == 0:
		return true
	case p.fold:
		return containsFold(raw, p.literal)
	}
	return bytes.Contains(raw, p.literal)
}

// containsFold reports whether the text contains the literal, which is in lowercase, without regard to the case of ASCII letters. It also
// returns true if the text contains a letter outside of ASCII that regular expressions regard as k or s.
func containsFold(text, literal []byte) bool {
	upper := bytes.ToUpper(literal[:1])[0]
	for i := 0; i+len(literal) <= len(text); i++ {
		if c := text[i]; (c == literal[0] || c == upper) && bytes.EqualFold(text[i:i+len(literal)], literal) {
			return true
		}
	}
	return bytes.Contains(text, []byte("\u212a")) || bytes.Contains(text, []byte("\u017f"))
}

// requiredLiteral returns the longest text that is found to be in every match of the expression. It is empty if none is found. With fold, it returns a
// text in lowercase that is in every match without regard to case, and consists of ASCII characters.
func requiredLiteral(re *syntax.Regexp, fold bool) string {
	switch re.Op {
	case syntax.OpLiteral:
		if re.Flags&syntax.FoldCase == 0 && !fold {
			return string(re.Rune)
		}
		if fold && !slices.ContainsFunc(re.Rune, func(r rune) bool { return r > unicode.MaxASCII }) {
			return strings.ToLower(string(re.Rune))
		}
	case syntax.OpCapture, syntax.OpPlus:
		return requiredLiteral(re.Sub[0], fold)
	case syntax.OpRepeat:
		if re.Min > 0 {
			return requiredLiteral(re.Sub[0], fold)
		}
	case syntax.OpConcat:
		best := ""
		for _, sub := range re.Sub {
			if l := requiredLiteral(sub, fold); len(l) > len(best) {
				best = l
			}
		}
		return best
	}
	return ""
}
