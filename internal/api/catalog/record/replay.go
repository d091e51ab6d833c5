package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"path"
	"reflect"
	"regexp"
	"strconv"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/rest"
)

// defaultNamespace is the namespace in which the replayer stores the objects of a table that specify none.
const defaultNamespace = "default"

// maxConflicts is the maximum number of attempts of an update. An attempt fails with a conflict if
// a controller of the server has written the object in between, as they do for every stored
// CustomResourceDefinition.
const maxConflicts = 50

// testUID is the UID of the objects that the replayer stores, and replaces the random UIDs in
// responses, so that results are the same in each run.
const testUID = "00000000-0000-4000-8000-000000000000"

// notReplayable is the error for a case that cannot be replayed against this server. Its text is
// the reason.
type notReplayable string

// Error returns the reason why the case cannot be replayed.
func (e notReplayable) Error() string { return string(e) }

// replayer sends the requests of test data tables to an API server, and stores the objects that they require.
type replayer struct {
	http      *http.Client
	host      string
	discovery *discovery.DiscoveryClient
	etcd      *clientv3.Client // may be nil
	// bases are the base objects of all tables, by apiVersion and kind.
	bases map[string][]json.RawMessage
}

// newReplayer returns a replayer for the server in config. etcd is a client of the server's etcd,
// or nil; then objects are stored through the API. bases are the base objects of all tables, by
// apiVersion and kind.
func newReplayer(config *rest.Config, etcd *clientv3.Client, bases map[string][]json.RawMessage) (*replayer, error) {
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		return nil, err
	}
	d, err := discovery.NewDiscoveryClientForConfigAndClient(config, client)
	if err != nil {
		return nil, err
	}
	return &replayer{http: client, host: strings.TrimSuffix(config.Host, "/"), discovery: d, etcd: etcd, bases: bases}, nil
}

// response is the response of the API server to a request of the replayer. In its body, testUID replaces random UIDs.
type response struct {
	code     int
	body     []byte
	warnings []string
}

// send sends a request and returns the response, of any status code. body is JSON or nil, and
// accept is the Accept header. The error is one of the connection.
func (r *replayer) send(ctx context.Context, method, path string, body []byte, accept string) (*response, error) {
	req, err := http.NewRequestWithContext(ctx, method, r.host+path, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Accept", accept)
	if len(body) > 0 {
		req.Header.Set("Content-Type", "application/json")
	}
	resp, err := r.http.Do(req)
	if err != nil {
		return nil, err
	}
	defer func() { _ = resp.Body.Close() }()
	out := &response{code: resp.StatusCode}
	if out.body, err = io.ReadAll(resp.Body); err != nil {
		return nil, err
	}
	out.body = maskUIDs(out.body, body)
	headers, _ := utilnet.ParseWarningHeaders(resp.Header.Values("Warning")) // malformed ones are skipped
	for _, h := range headers {
		out.warnings = append(out.warnings, h.Text)
	}
	return out, nil
}

// result returns what a table records of the response to a create or update request for the object
// sent: the validation errors, or the changes of the stored object and the warnings. For other
// errors, which cannot be recorded, it returns a notReplayable.
func (resp *response) result(tab *table, sent json.RawMessage) (result, error) {
	if resp.code < 300 {
		becomes, err := tab.mergePatch(sent, resp.body)
		return result{warnings: resp.warnings, becomes: becomes}, err
	}
	var status metav1.Status
	if err := json.Unmarshal(resp.body, &status); err != nil {
		return result{}, fmt.Errorf("HTTP %d: %s", resp.code, resp.body)
	}
	if status.Reason != metav1.StatusReasonInvalid || status.Details == nil || len(status.Details.Causes) == 0 {
		return result{}, notReplayable(fmt.Sprintf("%s: %s", status.Reason, status.Message))
	}
	var got result
	for _, cause := range status.Details.Causes {
		got.errors = append(got.errors, cause.Field+": "+withoutManagedFields(cause.Message))
	}
	return got, nil
}

var anyUID = regexp.MustCompile(`[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}`)

// maskUIDs replaces the random UIDs that the server has generated with testUID. UIDs that occur in
// sent, the request body, are kept.
func maskUIDs(body, sent []byte) []byte {
	return anyUID.ReplaceAllFunc(body, func(uid []byte) []byte {
		if bytes.Contains(sent, uid) {
			return uid
		}
		return []byte(testUID)
	})
}

// withoutManagedFields removes the managed fields from the JSON of an object in an error message,
// because they contain times and do not depend on the kind's rules.
func withoutManagedFields(text string) string {
	const name = `,"managedFields":`
	at := strings.Index(text, name)
	if at < 0 {
		return text
	}
	var fields json.RawMessage
	rest := strings.NewReader(text[at+len(name):])
	d := json.NewDecoder(rest)
	if err := d.Decode(&fields); err != nil {
		return text
	}
	return text[:at] + text[at+len(name)+len(fields):]
}

// target is the resource of the server to which the objects of one table belong. Its methods store objects and replay
// the cases of the table.
type target struct {
	*replayer
	tab        *table
	apiVersion string
	resource   metav1.APIResource
	// etcdPrefix is the directory in etcd that contains the resource's objects, with a trailing slash. It is
	// empty if it is unknown.
	etcdPrefix string
}

// start prepares the replay of a table: it finds the resource of the table's objects in discovery
// and, if an etcd client is set, the resource's key prefix. It returns an error if the server does
// not serve the kind.
func (r *replayer) start(ctx context.Context, tab *table) (*target, error) {
	var m metav1.TypeMeta
	if err := json.Unmarshal(tab.Base, &m); err != nil {
		return nil, err
	}
	list, err := r.discovery.ServerResourcesForGroupVersion(m.APIVersion)
	if err != nil {
		return nil, fmt.Errorf("discovering %s: %w", m.APIVersion, err)
	}
	t := &target{replayer: r, tab: tab, apiVersion: m.APIVersion}
	for _, res := range list.APIResources {
		if res.Kind == m.Kind && !strings.Contains(res.Name, "/") {
			t.resource = res
		}
	}
	if t.resource.Name == "" {
		return nil, fmt.Errorf("the server has no kind %s %s", m.APIVersion, m.Kind)
	}
	return t, t.findPrefix(ctx)
}

// findPrefix sets etcdPrefix. It creates an object of this table, or of another table of the same
// kind, finds the key of the object in etcd by its name and revision, and deletes it. If the server
// accepts none of the objects, etcdPrefix stays empty. Without an etcd client it does nothing.
func (t *target) findPrefix(ctx context.Context) error {
	if t.etcd == nil {
		return nil
	}
	objects := []json.RawMessage{t.tab.Base}
	for i := range t.tab.Cases {
		if c := &t.tab.Cases[i]; c.Create != nil && len(c.Errors) == 0 {
			sent, err := variant(t.tab.Base, c.Create)
			if err != nil {
				return err
			}
			objects = append(objects, sent)
		}
	}
	objects = append(objects, t.bases[t.apiVersion+" "+t.resource.Kind]...)
	for _, sent := range objects {
		o, err := nameOf(sent)
		if err != nil {
			return err
		}
		resp, err := t.send(ctx, http.MethodPost, t.collection(o.Namespace), sent, "application/json")
		if err != nil {
			return err
		}
		if resp.code >= 300 {
			continue
		}
		created, err := nameOf(resp.body)
		if err != nil {
			return err
		}
		found, err := t.etcd.Get(ctx, "/registry/", clientv3.WithPrefix(), clientv3.WithKeysOnly())
		if err != nil {
			return err
		}
		for _, kv := range found.Kvs {
			suffix := "/" + t.key(created.Namespace, created.Name)
			if strconv.FormatInt(kv.ModRevision, 10) == created.ResourceVersion && strings.HasSuffix(string(kv.Key), suffix) {
				t.etcdPrefix = strings.TrimSuffix(string(kv.Key), suffix) + "/"
			}
		}
		if created.Name == "" { // a review, which is not stored
			return nil
		}
		if err := t.remove(ctx, created.Namespace, created.Name); err != nil || t.etcdPrefix != "" {
			return err
		}
	}
	return nil
}

// nameOf returns the namespace, name and resource version of an object in JSON.
func nameOf(object json.RawMessage) (metav1.ObjectMeta, error) {
	var m struct {
		Metadata struct{ Namespace, Name, ResourceVersion string }
	}
	err := json.Unmarshal(object, &m)
	return metav1.ObjectMeta{Namespace: m.Metadata.Namespace, Name: m.Metadata.Name, ResourceVersion: m.Metadata.ResourceVersion}, err
}

// key returns the etcd key of an object relative to etcdPrefix: its name, for namespaced resources after the
// namespace. An empty namespace means defaultNamespace.
func (t *target) key(namespace, name string) string {
	if !t.resource.Namespaced {
		return name
	}
	if namespace == "" {
		namespace = defaultNamespace
	}
	return namespace + "/" + name
}

// collection returns the URL path of the resource's objects in a namespace; "" means the default
// namespace. The namespace is ignored for cluster-scoped resources.
func (t *target) collection(namespace string) string {
	root := "/apis/" + t.apiVersion
	if !strings.Contains(t.apiVersion, "/") {
		root = "/api/" + t.apiVersion
	}
	if !t.resource.Namespaced {
		return root + "/" + t.resource.Name
	}
	if namespace == "" {
		namespace = defaultNamespace
	}
	return path.Join(root, "namespaces", namespace, t.resource.Name)
}

// remove deletes an object. It first deletes the object through the API, so that the server
// releases what it allocated for it. Finalizers may keep the object, so remove then deletes its key
// in etcd or, without etcd, clears its finalizers.
func (t *target) remove(ctx context.Context, namespace, name string) error {
	if name == "" {
		return nil
	}
	if _, err := t.send(ctx, http.MethodDelete, t.collection(namespace)+"/"+name+"?gracePeriodSeconds=0", nil, "application/json"); err != nil {
		return err
	}
	if t.etcdPrefix != "" {
		_, err := t.etcd.Delete(ctx, t.etcdPrefix+t.key(namespace, name))
		return err
	}
	// Without etcd, remove the finalizers. If there are none, the object does not exist anymore.
	resp, err := t.send(ctx, http.MethodGet, t.collection(namespace)+"/"+name, nil, "application/json")
	if err != nil || resp.code >= 300 {
		return err
	}
	var m map[string]any
	if err := json.Unmarshal(resp.body, &m); err != nil {
		return err
	}
	if meta, ok := m["metadata"].(map[string]any); ok {
		delete(meta, "finalizers")
	}
	body, err := json.Marshal(m)
	if err != nil {
		return err
	}
	_, err = t.send(ctx, http.MethodPut, t.collection(namespace)+"/"+name, body, "application/json")
	return err
}

// replay sends the request of a case to the server and returns the result. The error is a
// notReplayable if the server cannot replay the case.
func (t *target) replay(ctx context.Context, c *tableCase) (result, error) {
	switch {
	case c.Create != nil:
		return t.create(ctx, c)
	case c.Update != nil:
		return t.update(ctx, c)
	case c.Row != nil:
		return t.row(ctx, c)
	}
	return result{}, errors.New("no request")
}

// create sends the create request of a case and deletes the object again if the server accepted it.
func (t *target) create(ctx context.Context, c *tableCase) (result, error) {
	sent, err := variant(t.tab.Base, c.Create)
	if err != nil {
		return result{}, err
	}
	o, err := nameOf(sent)
	if err != nil {
		return result{}, err
	}
	resp, err := t.send(ctx, http.MethodPost, t.collection(o.Namespace), sent, "application/json")
	if err != nil {
		return result{}, err
	}
	if resp.code < 300 {
		created, err := nameOf(resp.body)
		if err != nil {
			return result{}, err
		}
		if err := t.remove(ctx, created.Namespace, created.Name); err != nil {
			return result{}, err
		}
	}
	return resp.result(t.tab, sent)
}

// update stores the object of a case, sends the update request, and deletes the object. It repeats this up to
// maxConflicts times if the object has changed in between.
func (t *target) update(ctx context.Context, c *tableCase) (result, error) {
	stored, err := variant(t.tab.Base, c.Was)
	if err != nil {
		return result{}, fmt.Errorf("was: %w", err)
	}
	sent, err := variant(stored, c.Update)
	if err != nil {
		return result{}, err
	}
	o, err := nameOf(stored)
	if err != nil {
		return result{}, err
	}
	address := t.collection(o.Namespace) + "/" + o.Name
	if c.To != "" {
		address += "/" + c.To
	}
	var resp *response
	for range maxConflicts {
		revision, err := t.store(ctx, stored, true)
		if err != nil {
			return result{}, err
		}
		body, err := withRevision(sent, revision)
		if err != nil {
			return result{}, err
		}
		resp, err = t.send(ctx, http.MethodPut, address, body, "application/json")
		if err != nil {
			return result{}, err
		}
		if err := t.remove(ctx, o.Namespace, o.Name); err != nil {
			return result{}, err
		}
		// The server's own controllers may have changed the object in the meantime.
		if resp.code != http.StatusConflict {
			break
		}
	}
	return resp.result(t.tab, sent)
}

// recordedAt is the time at which the objects in table rows have the ages in the tables, as in
// tables_test.go.
var recordedAt = time.Date(2026, time.November, 21, 19, 0, 0, 0, time.UTC)

var anyTime = regexp.MustCompile(`"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(\.\d+)?Z"`)

// shiftTimes adds d to all timestamps in the JSON of an object, so that ages in table rows are the
// recorded ones.
func shiftTimes(object json.RawMessage, d time.Duration) (json.RawMessage, error) {
	const seconds = "2006-01-02T15:04:05"
	var failed error
	out := anyTime.ReplaceAllFunc(object, func(text []byte) []byte {
		parts := anyTime.FindSubmatch(text)
		at, err := time.Parse(seconds, string(parts[1]))
		failed = errors.Join(failed, err)
		return fmt.Appendf(nil, `"%s%sZ"`, at.Add(d).Format(seconds), parts[2])
	})
	return out, failed
}

// row stores the object of a case, requests it as a table, and returns the cells of its row.
// Without etcd the case is not replayable.
func (t *target) row(ctx context.Context, c *tableCase) (result, error) {
	stored, err := variant(t.tab.Base, c.Row)
	if err != nil {
		return result{}, err
	}
	o, err := nameOf(stored)
	if err != nil {
		return result{}, err
	}
	if t.etcdPrefix == "" {
		return result{}, notReplayable("the object cannot be stored without a creation time through the API")
	}
	if stored, err = shiftTimes(stored, time.Since(recordedAt)); err != nil {
		return result{}, err
	}
	if _, err := t.store(ctx, stored, false); err != nil {
		return result{}, err
	}
	resp, err := t.send(ctx, http.MethodGet, t.collection(o.Namespace)+"/"+o.Name, nil, "application/json;as=Table;v=v1;g=meta.k8s.io")
	if err != nil {
		return result{}, err
	}
	if err := t.remove(ctx, o.Namespace, o.Name); err != nil {
		return result{}, err
	}
	var printed metav1.Table
	if err := json.Unmarshal(resp.body, &printed); err != nil || len(printed.Rows) != 1 {
		return result{}, notReplayable(fmt.Sprintf("no row: HTTP %d: %s", resp.code, resp.body))
	}
	got := result{cells: map[string]any{}}
	for i, column := range printed.ColumnDefinitions {
		got.cells[column.Name] = printed.Rows[0].Cells[i]
	}
	return got, nil
}

// store stores an object before a request of a case and returns its resource version. It writes any
// object to etcd, as if an earlier version of the server had accepted it. Without etcd it uses the
// API, and the server must accept the object. If created is set, the stored object gets a creation
// time and a UID.
func (t *target) store(ctx context.Context, object json.RawMessage, created bool) (string, error) {
	o, err := nameOf(object)
	if err != nil {
		return "", err
	}
	if t.etcdPrefix == "" {
		return t.storeByAPI(ctx, object, &o)
	}
	var m map[string]any
	if err := json.Unmarshal(object, &m); err != nil {
		return "", err
	}
	meta, ok := m["metadata"].(map[string]any)
	if !ok {
		return "", notReplayable("the object has no metadata")
	}
	delete(meta, "resourceVersion")
	if t.resource.Namespaced && o.Namespace == "" {
		meta["namespace"] = defaultNamespace
	}
	if created {
		meta["creationTimestamp"] = time.Now().UTC().Format(time.RFC3339)
		if meta["uid"] == nil {
			meta["uid"] = testUID
		}
	}
	data, err := json.Marshal(m)
	if err != nil {
		return "", err
	}
	put, err := t.etcd.Put(ctx, t.etcdPrefix+t.key(o.Namespace, o.Name), string(data))
	if err != nil {
		return "", fmt.Errorf("writing to etcd: %w", err)
	}
	return strconv.FormatInt(put.Header.Revision, 10), nil
}

// storeByAPI creates an object and then writes its status, if the resource has one. o is the
// object's metadata. The case is not replayable if the server rejects the object or stores it in
// another form.
func (t *target) storeByAPI(ctx context.Context, object json.RawMessage, o *metav1.ObjectMeta) (string, error) {
	resp, err := t.send(ctx, http.MethodPost, t.collection(o.Namespace), object, "application/json")
	if err != nil {
		return "", err
	}
	if resp.code >= 300 {
		return "", notReplayable("the server does not accept the stored object: " + string(resp.body))
	}
	stored := resp.body
	is, err := nameOf(stored)
	if err != nil {
		return "", err
	}
	body, err := withRevision(object, is.ResourceVersion)
	if err != nil {
		return "", err
	}
	resp, err = t.send(ctx, http.MethodPut, t.collection(o.Namespace)+"/"+o.Name+"/status", body, "application/json")
	if err != nil {
		return "", err
	}
	if resp.code < 300 {
		stored = resp.body
		if is, err = nameOf(stored); err != nil {
			return "", err
		}
	}
	if same, err := subset(object, stored); err != nil || !same {
		_ = t.remove(ctx, o.Namespace, o.Name)
		return "", errors.Join(err, notReplayable("the server does not store the object as it is sent"))
	}
	return is.ResourceVersion, nil
}

// withRevision returns object with the resource version revision, unless it already has one.
func withRevision(object json.RawMessage, revision string) (json.RawMessage, error) {
	var m map[string]any
	if err := json.Unmarshal(object, &m); err != nil {
		return nil, err
	}
	meta, ok := m["metadata"].(map[string]any)
	if !ok {
		return nil, notReplayable("the object has no metadata")
	}
	if meta["resourceVersion"] == nil {
		meta["resourceVersion"] = revision
	}
	return json.Marshal(m)
}

// subset reports whether the object have contains all fields of the object want. Empty fields are
// equivalent to missing ones.
func subset(want, have json.RawMessage) (bool, error) {
	var a, b any
	if err := json.Unmarshal(want, &a); err != nil {
		return false, err
	}
	if err := json.Unmarshal(have, &b); err != nil {
		return false, err
	}
	dropEmpty(a)
	dropEmpty(b)
	return contains(b, a), nil
}

// contains reports whether the JSON value have contains all members of want. Lists must have the same length.
func contains(have, want any) bool {
	switch want := want.(type) {
	case map[string]any:
		have, ok := have.(map[string]any)
		for name, member := range want {
			if !ok || !contains(have[name], member) {
				return false
			}
		}
		return true
	case []any:
		have, ok := have.([]any)
		if !ok || len(have) != len(want) {
			return false
		}
		for i := range want {
			if !contains(have[i], want[i]) {
				return false
			}
		}
		return true
	}
	return reflect.DeepEqual(have, want)
}
