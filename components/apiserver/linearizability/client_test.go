package linearizability

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	clientrest "k8s.io/client-go/rest"

	"hyperkube/internal/credentials/pki"
	"hyperkube/internal/testing/history"
)

// requestTimeout is how long clients wait for a response, and unavailablePause is the pause after a
// request without one.
const (
	requestTimeout   = 2 * time.Second
	unavailablePause = 20 * time.Millisecond
)

// keys are the names of the objects.
var keys = []string{"k0", "k1", "k2", "k3", "k4"}

// server is an API server as its clients see it.
type server struct {
	t      testing.TB
	name   string
	config clientrest.Config
	// answered counts the requests with a known result.
	answered atomic.Int64
}

// newServer returns the API server at an address.
func newServer(t testing.TB, name, address string, ca *pki.CA) *server {
	t.Helper()
	admin, err := ca.NewPair(pki.Client("admin", "system:masters"))
	if err != nil {
		t.Fatal(err)
	}
	return &server{t: t, name: name, config: clientrest.Config{
		Host: "https://" + address, QPS: -1, Timeout: 0,
		TLSClientConfig: clientrest.TLSClientConfig{CAData: ca.CertPEM, CertData: admin.CertPEM, KeyData: admin.KeyPEM},
	}}
}

// connect returns a client with a dedicated connection.
func (s *server) connect(format string) clientrest.Interface {
	config := clientrest.CopyConfig(&s.config)
	config.ContentType = format
	config.Dial = (&net.Dialer{}).DialContext
	return kubernetes.NewForConfigOrDie(config).CoreV1().RESTClient()
}

// format returns the media type that a client uses.
func format(client int) string {
	return []string{"application/json", "application/vnd.kubernetes.protobuf"}[client/2%2]
}

// recorder records what the clients of a round observe. It is safe for concurrent use.
type recorder struct {
	began time.Time

	mu       sync.Mutex
	history  history.History
	errors   map[string]int // number of responses by message
	unknown  int
	sequence int // number of the last value
}

func newRecorder() *recorder { return &recorder{began: time.Now(), errors: map[string]int{}} }

// now returns the time since the beginning, which is monotonic.
func (r *recorder) now() time.Duration { return time.Since(r.began) }

// value returns a new value for a write.
func (r *recorder) value() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.sequence++
	return fmt.Sprint("v", r.sequence)
}

func (r *recorder) add(op history.Operation) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.history.Operations = append(r.history.Operations, op)
	if op.Response.Result == history.Unknown {
		r.unknown++
	}
}

func (r *recorder) addWatches(watches []*history.Watch) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.history.Watches = append(r.history.Watches, watches...)
}

func (r *recorder) addCache(c *history.Cache) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.history.Caches = append(r.history.Caches, c)
}

// failed records an error without a known result.
func (r *recorder) failed(err error) {
	text := err.Error()
	if status := apierrors.APIStatus(nil); errors.As(err, &status) {
		text = fmt.Sprint(status.Status().Code, " ", status.Status().Message)
	} else if i := strings.LastIndex(text, ": "); i >= 0 {
		text = text[i+2:]
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.errors[text]++
}

// summary lists the errors.
func (r *recorder) summary() string {
	var b strings.Builder
	for _, text := range slices.Sorted(maps.Keys(r.errors)) {
		fmt.Fprintf(&b, "\n%6d  %s", r.errors[text], text)
	}
	return b.String()
}

// client sends requests to one server and records them.
type client struct {
	*recorder
	id        int
	server    *server
	rest      clientrest.Interface
	namespace string
	// padding is the size of the objects.
	padding int
	rand    *rand.Rand
	// seen are the objects as last read, and listed is the revision of the last list.
	seen   map[string]history.Object
	listed int64
	cache  history.Cache
}

func newClient(r *recorder, id int, s *server, namespace string, padding int) *client {
	return &client{
		recorder: r, id: id, server: s, rest: s.connect(format(id)), namespace: namespace, padding: padding,
		rand: rand.New(rand.NewPCG(uint64(time.Now().UnixNano()), uint64(id))), seen: map[string]history.Object{},
	}
}

// run sends random requests until ctx is done.
func (c *client) run(ctx context.Context) {
	defer func() { c.addCache(&c.cache) }()
	for ctx.Err() == nil {
		switch c.rand.IntN(8) {
		case 0, 1:
			c.readCache()
		case 2:
			c.readExact()
		}
		if c.do(c.next()).Result == history.Unknown {
			select {
			case <-ctx.Done():
			case <-time.After(unavailablePause):
			}
		}
	}
}

// next returns a random request.
func (c *client) next() history.Request {
	in := history.Request{Key: keys[c.rand.IntN(len(keys))]}
	in.Verb = []history.Verb{history.Get, history.Get, history.List, history.List, history.Create, history.Create, history.Patch, history.Update, history.Update, history.Delete}[c.rand.IntN(10)]
	switch in.Verb {
	case history.List:
		in.Key = ""
	case history.Update, history.Delete:
		if c.rand.IntN(4) > 0 {
			in.Revision = c.seen[in.Key].Revision
		}
	}
	switch in.Verb {
	case history.Create, history.Update, history.Patch:
		in.Value = c.value()
	}
	return in
}

// do sends a request and records its result. Requests are not retried.
func (c *client) do(in history.Request) history.Response {
	op := history.Operation{Client: c.id, Request: in, Call: c.now()}
	op.Response = c.send(in)
	op.Return = c.now()
	c.add(op)
	if op.Response.Result != history.Unknown {
		c.server.answered.Add(1)
	}
	return op.Response
}

// send sends a request.
func (c *client) send(in history.Request) history.Response {
	object := &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: in.Key, Namespace: c.namespace},
		Data:       map[string]string{"v": in.Value, "padding": strings.Repeat("x", c.padding)},
	}
	var r *clientrest.Request
	switch in.Verb {
	case history.List:
		return c.list()
	case history.Get:
		r = c.rest.Get()
	case history.Create:
		r = c.rest.Post().Body(object)
	case history.Update:
		if in.Revision != 0 {
			object.ResourceVersion = strconv.FormatInt(in.Revision, 10)
		}
		r = c.rest.Put().Body(object)
	case history.Patch:
		r = c.rest.Patch(types.MergePatchType).Body([]byte(`{"data":{"v":"` + in.Value + `"}}`))
	case history.Delete:
		options := &metav1.DeleteOptions{}
		if in.Revision != 0 {
			revision := strconv.FormatInt(in.Revision, 10)
			options.Preconditions = &metav1.Preconditions{ResourceVersion: &revision}
		}
		r = c.rest.Delete().Body(options)
	}
	if in.Verb != history.Create {
		r = r.Name(in.Key)
	}
	ctx, cancel := context.WithTimeout(context.Background(), requestTimeout)
	defer cancel()
	result := r.Namespace(c.namespace).Resource("configmaps").MaxRetries(0).Do(ctx)
	if err := result.Error(); err != nil {
		return history.Response{Result: c.classify(in, err)}
	}
	if in.Verb == history.Delete {
		return history.Response{Result: history.OK}
	}
	cm := &corev1.ConfigMap{}
	if err := result.Into(cm); err != nil {
		c.server.t.Errorf("decoding an object: %v", err)
		return history.Response{Result: history.Unknown}
	}
	c.seen[in.Key] = objectOf(c.server.t, cm)
	return history.Response{Result: history.OK, Object: c.seen[in.Key]}
}

// classify returns the result of a request that failed.
func (c *client) classify(in history.Request, err error) history.Result {
	var status apierrors.APIStatus
	// As upstream, the conflict of a precondition names the kind, and all others the resource.
	if errors.As(err, &status) && status.Status().Details != nil && slices.Contains([]string{"configmaps", "ConfigMap"}, status.Status().Details.Kind) {
		switch {
		case apierrors.IsNotFound(err):
			return history.NotFound
		case apierrors.IsAlreadyExists(err):
			return history.Exists
		case apierrors.IsConflict(err) && in.Revision != 0:
			return history.Conflict
		}
	}
	c.failed(err)
	return history.Unknown
}

func objectOf(t testing.TB, cm *corev1.ConfigMap) history.Object {
	return history.Object{Value: cm.Data["v"], Revision: revisionOf(t, cm.ResourceVersion)}
}

func contentsOf(t testing.TB, list *corev1.ConfigMapList) (int64, map[string]history.Object) {
	objects := map[string]history.Object{}
	for i := range list.Items {
		objects[list.Items[i].Name] = objectOf(t, &list.Items[i])
	}
	return revisionOf(t, list.ResourceVersion), objects
}

func revisionOf(t testing.TB, text string) int64 {
	revision, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		t.Errorf("resourceVersion: %v", err)
	}
	return revision
}

// list sends a list, in random cases as pages. All pages have the revision of the first one.
func (c *client) list() history.Response {
	options := metav1.ListOptions{Limit: int64(c.rand.IntN(len(keys)))}
	out := history.Response{Result: history.OK, Objects: map[string]history.Object{}}
	for page := 0; page == 0 || options.Continue != ""; page++ {
		list, err := c.page(options)
		if err != nil {
			c.failed(err)
			return history.Response{Result: history.Unknown}
		}
		revision, objects := contentsOf(c.server.t, list)
		if page > 0 && revision != out.Revision {
			c.server.t.Errorf("page %d of a list has revision %d, the page before has %d", page, revision, out.Revision)
		}
		out.Revision, options.Continue = revision, list.Continue
		maps.Copy(out.Objects, objects)
	}
	maps.Copy(c.seen, out.Objects)
	c.listed = out.Revision
	return out
}

// page sends a list request.
func (c *client) page(options metav1.ListOptions) (*corev1.ConfigMapList, error) {
	ctx, cancel := context.WithTimeout(context.Background(), requestTimeout)
	defer cancel()
	list := &corev1.ConfigMapList{}
	err := c.rest.Get().Namespace(c.namespace).Resource("configmaps").MaxRetries(0).VersionedParams(&options, scheme.ParameterCodec).Do(ctx).Into(list)
	return list, err
}

// readCache lists from the cache of the server, which may be of any revision, or of one that is at
// least as new as the client's last list.
func (c *client) readCache() {
	read := history.CacheRead{AtLeast: c.listed * int64(c.rand.IntN(2))}
	options := metav1.ListOptions{ResourceVersion: strconv.FormatInt(read.AtLeast, 10)}
	if read.AtLeast != 0 {
		options.ResourceVersionMatch = metav1.ResourceVersionMatchNotOlderThan
	}
	list, err := c.page(options)
	if err != nil {
		c.failed(err)
		return
	}
	read.Revision, read.Objects = contentsOf(c.server.t, list)
	c.cache.Reads = append(c.cache.Reads, read)
}

// readExact lists at the revision of the client's last list.
func (c *client) readExact() {
	if c.listed == 0 {
		return
	}
	list, err := c.page(metav1.ListOptions{ResourceVersion: strconv.FormatInt(c.listed, 10), ResourceVersionMatch: metav1.ResourceVersionMatchExact})
	if err != nil {
		c.failed(err)
		return
	}
	revision, objects := contentsOf(c.server.t, list)
	if revision != c.listed {
		c.server.t.Errorf("a list at exactly revision %d has revision %d", c.listed, revision)
	}
	c.addCache(&history.Cache{Reads: []history.CacheRead{{Revision: revision, Objects: objects}}})
}
