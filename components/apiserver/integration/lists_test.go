package integration

import (
	"encoding/json"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"hyperkube/components/apiserver"
)

// listAnswer contains the parts of a list that tests check.
type listAnswer struct {
	Metadata metav1.ListMeta
	Items    []struct{ Metadata metav1.ObjectMeta }
	Message  string
	Reason   string
}

func (l *listAnswer) names() string {
	var all []string
	for _, item := range l.Items {
		all = append(all, item.Metadata.Name)
	}
	return strings.Join(all, " ")
}

// list requests a collection. params are alternating names and values. Empty values are left out.
func (a *plainClient) list(path string, params ...string) (int, *listAnswer) {
	a.t.Helper()
	q := url.Values{}
	for i := 0; i < len(params); i += 2 {
		if params[i+1] != "" {
			q.Set(params[i], params[i+1])
		}
	}
	r := a.do("GET", path+"?"+q.Encode(), "")
	l := &listAnswer{}
	if err := json.Unmarshal([]byte(r.body), l); err != nil {
		a.t.Fatalf("%v: %s", err, r.body)
	}
	return r.code, l
}

func number(t *testing.T, revision string) int64 {
	t.Helper()
	n, err := strconv.ParseInt(revision, 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// TestListVersions checks the version of a list for each combination of resourceVersion,
// resourceVersionMatch, limit and continue.
//
// https://kubernetes.io/docs/reference/using-api/api-concepts/#semantics-for-get-and-list
func TestListVersions(t *testing.T) {
	a := newAPI(t, startServer(t, apiserver.Config{}))
	versions := map[string]string{"": "", "0": "0", "future": "99999999"}
	for i, name := range strings.Fields("a b c d e") {
		r := a.do("POST", cms, fmt.Sprintf(`{"metadata":{"name":%q,"labels":{"x":"y"}}}`, name), jsn)
		versions[[]string{"first", "second", "third", "fourth", "last"}[i]] = r.object(t).GetResourceVersion()
	}
	const (
		unprovided = "resourceVersionMatch is forbidden unless resourceVersion is provided"
		continued  = "resourceVersionMatch is forbidden when continue is provided"
		unknown    = `resourceVersionMatch: Unsupported value: "Bogus": supported values: "Exact", "NotOlderThan", ""`
		exactZero  = `resourceVersionMatch "exact" is forbidden for resourceVersion "0"`
		both       = "specifying resource version is not allowed when using continue"
		late       = "Too large resource version: 99999999"
	)
	for _, tc := range []struct {
		version, match, limit, next, selector string
		// want contains the names, the version of the list, whether there are more pages, and the
		// remaining item count, or -1 if it is not set. For failures it contains the error message.
		want string
		code int
	}{
		{"", "", "", "", "", "a b c d e, now false -1", 200},
		{"", "", "", "2", "", "c d e, now false -1", 200},
		{"", "", "2", "", "", "a b, now true 3", 200},
		{"", "", "2", "", "x=y", "a b, now true -1", 200},
		{"", "", "2", "2", "", "c d, now true 1", 200},
		{"", "", "2", "2", "x=y", "c d, now true -1", 200},
		{"", "", "9", "", "", "a b c d e, now false -1", 200},
		{"", "Exact", "", "", "", unprovided, 422},
		{"", "NotOlderThan", "2", "", "", unprovided, 422},
		{"", "Exact", "2", "2", "", continued, 422},
		{"", "Bogus", "", "", "", unknown, 422},
		{"0", "", "", "", "", "a b c d e, now false -1", 200},
		{"0", "", "2", "", "", "a b c d e, now false -1", 200},
		{"0", "", "2", "2", "", "c d e, now false -1", 200},
		{"0", "Exact", "", "", "", exactZero, 422},
		{"0", "NotOlderThan", "2", "", "", "a b c d e, now false -1", 200},
		{"0", "NotOlderThan", "", "2", "", continued, 422},
		{"third", "", "", "", "", "a b c d e, now false -1", 200},
		{"third", "", "2", "", "", "a b, third true 1", 200},
		{"third", "", "", "2", "", both, 400},
		{"third", "Exact", "", "", "", "a b c, third false -1", 200},
		{"third", "Exact", "2", "", "", "a b, third true 1", 200},
		{"third", "Exact", "2", "", "x=y", "a b, third true -1", 200},
		{"third", "NotOlderThan", "", "", "", "a b c d e, now false -1", 200},
		{"third", "NotOlderThan", "2", "", "", "a b, now true 3", 200},
		{"third", "Bogus", "", "", "", unknown, 422},
		{"last", "", "2", "", "", "a b, now true 3", 200},
		{"last", "Exact", "", "", "", "a b c d e, now false -1", 200},
		{"future", "", "", "", "", late, 504},
		{"future", "NotOlderThan", "", "", "", late, 504},
	} {
		t.Run(fmt.Sprintf("%s %s %s %s %s", tc.version, tc.match, tc.limit, tc.next, tc.selector), func(t *testing.T) {
			token := ""
			if tc.next != "" {
				_, first := a.list(cms, "limit", tc.next)
				token = first.Metadata.Continue
			}
			code, got := a.list(cms, "resourceVersion", versions[tc.version], "resourceVersionMatch", tc.match, "limit", tc.limit, "continue", token, "labelSelector", tc.selector, "timeoutSeconds", "1")
			if code != tc.code {
				t.Fatalf("%d %+v", code, got)
			}
			if code != 200 {
				if !strings.Contains(got.Message, tc.want) {
					t.Errorf("%s, want %s", got.Message, tc.want)
				}
				return
			}
			when, remain := got.Metadata.ResourceVersion, int64(-1)
			switch {
			case when == versions["third"]:
				when = "third"
			case number(t, when) >= number(t, versions["last"]):
				when = "now"
			}
			if n := got.Metadata.RemainingItemCount; n != nil {
				remain = *n
			}
			if is := fmt.Sprintf("%s, %s %t %d", got.names(), when, got.Metadata.Continue != "", remain); is != tc.want {
				t.Errorf("%s, want %s", is, tc.want)
			}
		})
	}
}

// TestPagesDuringWrites checks that changes between two pages are not visible in later pages.
func TestPagesDuringWrites(t *testing.T) {
	a := newAPI(t, startServer(t, apiserver.Config{}))
	was := map[string]string{} // resource versions
	for i := range 40 {
		name := fmt.Sprintf("m%02d", i)
		was[name] = a.do("POST", cms, fmt.Sprintf(`{"metadata":{"name":%q}}`, name), jsn).object(t).GetResourceVersion()
	}
	_, page := a.list(cms, "limit", "7")
	revision := page.Metadata.ResourceVersion
	found := map[string]string{}
	for n := 0; ; n++ {
		if page.Metadata.ResourceVersion != revision {
			t.Errorf("page %d is of %s, the first of %s", n, page.Metadata.ResourceVersion, revision)
		}
		for _, item := range page.Items {
			found[item.Metadata.Name] = item.Metadata.ResourceVersion
		}
		if page.Metadata.Continue == "" {
			break
		}
		// Delete an object of a later page, change one, and create one.
		a.do("DELETE", fmt.Sprintf("%s/m%02d", cms, 39-n), "")
		a.do("PATCH", fmt.Sprintf("%s/m%02d", cms, 34-n), `{"data":{"k":"v"}}`, mrg)
		a.do("POST", cms, fmt.Sprintf(`{"metadata":{"name":"m3%dx"}}`, n), jsn)
		_, page = a.list(cms, "limit", "7", "continue", page.Metadata.Continue)
	}
	if len(found) != len(was) {
		t.Errorf("found %d of %d", len(found), len(was))
	}
	for name, revision := range found {
		if was[name] != revision {
			t.Errorf("%s at %s, was at %q", name, revision, was[name])
		}
	}
}

// TestExpiredPages checks that a client whose continue token has expired gets an error with a new
// token for the remaining items at the latest version.
func TestExpiredPages(t *testing.T) {
	s := startServer(t, apiserver.Config{})
	a := newAPI(t, s)
	for _, name := range strings.Fields("a b c d") {
		a.do("POST", cms, fmt.Sprintf(`{"metadata":{"name":%q}}`, name), jsn)
	}
	_, first := a.list(cms, "limit", "2")
	a.do("DELETE", cms+"/c", "")
	later := a.do("POST", cms, `{"metadata":{"name":"e"}}`, jsn).object(t).GetResourceVersion()
	for _, store := range s.Stores() {
		store.SetCompacted(number(t, later))
	}

	code, expired := a.list(cms, "limit", "1", "continue", first.Metadata.Continue)
	if code != 410 || expired.Reason != "Expired" || !strings.Contains(expired.Message, "The provided continue parameter is too old to display a consistent list result.") {
		t.Fatalf("%d %+v", code, expired)
	}
	var names []string
	for token := expired.Metadata.Continue; ; {
		code, page := a.list(cms, "limit", "1", "continue", token)
		if code != 200 || number(t, page.Metadata.ResourceVersion) < number(t, later) {
			t.Fatalf("%d %+v", code, page)
		}
		names = append(names, page.names())
		if token = page.Metadata.Continue; token == "" {
			break
		}
	}
	if !slices.Equal(names, []string{"d", "e"}) {
		t.Errorf("the rest is %q", names)
	}
	if code, exact := a.list(cms, "resourceVersion", first.Metadata.ResourceVersion, "resourceVersionMatch", "Exact"); code != 410 || exact.Reason != "Expired" {
		t.Errorf("%d %+v", code, exact)
	}
}

// TestWatchOptions checks which combinations of watch options are rejected.
//
// https://kubernetes.io/docs/reference/using-api/api-concepts/#streaming-lists
func TestWatchOptions(t *testing.T) {
	a := newAPI(t, startServer(t, apiserver.Config{}))
	a.do("POST", cms, `{"metadata":{"name":"a"}}`, jsn)
	for _, tc := range []struct {
		query string
		code  int
		want  string
	}{
		{"resourceVersionMatch=NotOlderThan", 422, "resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided"},
		{"sendInitialEvents=true", 422, "sendInitialEvents requires setting resourceVersionMatch to NotOlderThan"},
		{"sendInitialEvents=true&resourceVersionMatch=Exact", 422, "sendInitialEvents requires setting resourceVersionMatch to NotOlderThan"},
		{"sendInitialEvents=true&resourceVersionMatch=NotOlderThan", 200, `{"type":"ADDED","object":{"kind":"ConfigMap","apiVersion":"v1","metadata":{"name":"a"`},
		{"sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true", 200, `"annotations":{"k8s.io/initial-events-end":"true"}`},
		{"sendInitialEvents=false&resourceVersionMatch=NotOlderThan", 200, ""},
		{"resourceVersion=0", 200, `{"type":"ADDED","object":{"kind":"ConfigMap","apiVersion":"v1","metadata":{"name":"a"`},
		{"resourceVersion=99999999", 200, ""}, // may exist later
	} {
		r := a.do("GET", cms+"?watch=true&timeoutSeconds=1&"+tc.query, "")
		if r.code != tc.code || !strings.Contains(r.body, tc.want) || tc.want == "" && r.body != "" {
			t.Errorf("%s: %d %s", tc.query, r.code, r.body)
		}
	}
}

// TestDeletePages deletes a page of a collection and checks the continue token.
func TestDeletePages(t *testing.T) {
	a := newAPI(t, startServer(t, apiserver.Config{}))
	for _, name := range strings.Fields("a b c d e") {
		a.do("POST", cms, fmt.Sprintf(`{"metadata":{"name":%q,"finalizers":[%s]}}`, name, map[bool]string{true: `"x.io/y"`}[name == "b"]), jsn)
	}
	r := a.do("DELETE", cms+"?limit=2", "")
	gone := &listAnswer{}
	if err := json.Unmarshal([]byte(r.body), gone); err != nil {
		t.Fatal(err)
	}
	if n := gone.Metadata.RemainingItemCount; r.code != 200 || gone.names() != "a b" || gone.Metadata.Continue == "" || n == nil || *n != 3 {
		t.Errorf("%d %s", r.code, r.body)
	}
	if _, left := a.list(cms); left.names() != "b c d e" {
		t.Errorf("left are %s", left.names())
	}
	if r := a.do("DELETE", cms+"?limit=2&continue="+url.QueryEscape(gone.Metadata.Continue), ""); r.code != 200 {
		t.Errorf("%+v", r)
	}
	if _, left := a.list(cms); left.names() != "b e" {
		t.Errorf("left are %s", left.names())
	}
	if r := a.do("DELETE", cms, `{"preconditions":{"uid":"zz"}}`, jsn); r.code != 409 {
		t.Errorf("%+v", r)
	}
	if r := a.do("DELETE", cms+"?dryRun=All", ""); r.code != 200 {
		t.Errorf("%+v", r)
	}
	if _, left := a.list(cms); left.names() != "b e" {
		t.Errorf("left are %s", left.names())
	}
}
