package sink

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"time"

	"hyperkube/components/logging/record"
	"hyperkube/components/logging/store"
)

// bySource groups entries by their source and stream, in the order of their first entry.
func bySource(entries []store.Entry) [][]store.Entry {
	type key struct {
		source *record.Source
		stream record.Stream
	}
	index := map[key]int{}
	var out [][]store.Entry
	for _, e := range entries {
		k := key{e.Source, e.Stream}
		i, ok := index[k]
		if !ok {
			i = len(out)
			index[k], out = i, append(out, nil)
		}
		out[i] = append(out[i], e)
	}
	return out
}

// attribute is an attribute of OTLP.
type attribute struct {
	Key   string     `json:"key"`
	Value otlpString `json:"value"`
}

type otlpString struct {
	String string `json:"stringValue"`
}

// otlp is the protocol OTLP/HTTP with JSON. Names of attributes are those of OpenTelemetry's semantic conventions.
//
// https://opentelemetry.io/docs/specs/otlp/
type otlp struct{}

func (otlp) contentType() string { return "application/json" }

func (otlp) encode(w io.Writer, entries []store.Entry) error {
	type logRecord struct {
		Time       string      `json:"timeUnixNano"`
		Observed   string      `json:"observedTimeUnixNano"`
		Body       otlpString  `json:"body"`
		Attributes []attribute `json:"attributes,omitempty"`
	}
	type scopeLogs struct {
		Records []logRecord `json:"logRecords"`
	}
	type resource struct {
		Attributes []attribute `json:"attributes"`
	}
	type resourceLogs struct {
		Resource resource    `json:"resource"`
		Scopes   []scopeLogs `json:"scopeLogs"`
	}
	var body struct {
		Logs []resourceLogs `json:"resourceLogs"`
	}
	now := strconv.FormatInt(time.Now().UnixNano(), 10)
	for _, group := range bySource(entries) {
		src := group[0].Source
		var l resourceLogs
		add := func(key, value string) {
			if value != "" {
				l.Resource.Attributes = append(l.Resource.Attributes, attribute{key, otlpString{value}})
			}
		}
		add("k8s.node.name", src.Node)
		add("k8s.namespace.name", src.Namespace)
		add("k8s.pod.name", src.Pod)
		add("k8s.pod.uid", src.UID)
		add("k8s.container.name", src.Container)
		add("service.name", serviceName(src))
		for _, name := range slices.Sorted(maps.Keys(src.Labels)) {
			add("k8s.pod.label."+name, src.Labels[name])
		}
		var scope scopeLogs
		for _, e := range group {
			r := logRecord{Time: strconv.FormatInt(e.Time, 10), Observed: now, Body: otlpString{string(e.Text)}}
			if s := e.Stream.String(); s != "" {
				r.Attributes = []attribute{{"log.iostream", otlpString{s}}}
			}
			scope.Records = append(scope.Records, r)
		}
		l.Scopes = []scopeLogs{scope}
		body.Logs = append(body.Logs, l)
	}
	return json.NewEncoder(w).Encode(body)
}

// serviceName returns the name of the application of a source.
func serviceName(src *record.Source) string {
	for _, label := range []string{"app.kubernetes.io/name", "app", "k8s-app"} {
		if v := src.Labels[label]; v != "" {
			return v
		}
	}
	if src.File != "" {
		return src.File
	}
	return src.Container
}

func (otlp) accepted(body []byte, _ []store.Entry) (int, []store.Entry, error) {
	var response struct {
		Partial struct {
			Rejected json.RawMessage `json:"rejectedLogRecords"` // a number or, because it is an int64, a string
		} `json:"partialSuccess"`
	}
	if len(bytes.TrimSpace(body)) == 0 || json.Unmarshal(body, &response) != nil {
		return 0, nil, nil // a success without details
	}
	n, err := strconv.Atoi(string(bytes.Trim(response.Partial.Rejected, `"`)))
	if err != nil || n < 0 {
		return 0, nil, nil
	}
	return n, nil, nil
}

// loki is the push API of Loki.
//
// https://grafana.com/docs/loki/latest/reference/loki-http-api/#ingest-logs
type loki struct{}

func (loki) contentType() string { return "application/json" }

func (loki) encode(w io.Writer, entries []store.Entry) error {
	type stream struct {
		Labels map[string]string `json:"stream"`
		Values [][2]string       `json:"values"`
	}
	var body struct {
		Streams []stream `json:"streams"`
	}
	for _, group := range bySource(entries) {
		src := group[0].Source
		s := stream{Labels: map[string]string{}}
		for name, value := range map[string]string{
			"node": src.Node, "namespace": src.Namespace, "pod": src.Pod, "container": src.Container, "stream": group[0].Stream.String(), "app": serviceName(src), "file": src.File,
		} {
			if value != "" {
				s.Labels[name] = value
			}
		}
		for _, e := range group {
			s.Values = append(s.Values, [2]string{strconv.FormatInt(e.Time, 10), string(e.Text)})
		}
		body.Streams = append(body.Streams, s)
	}
	return json.NewEncoder(w).Encode(body)
}

func (loki) accepted([]byte, []store.Entry) (int, []store.Entry, error) { return 0, nil, nil }

// elasticsearch is the bulk API of Elasticsearch and OpenSearch. The ID of a document is derived from its content, so that records that are sent
// again are not stored again.
type elasticsearch struct{ index string }

func newElasticsearch(index string) elasticsearch {
	if index == "" {
		index = "logs-hyperkube"
	}
	return elasticsearch{index}
}

func (elasticsearch) contentType() string { return "application/x-ndjson" }

func (p elasticsearch) encode(w io.Writer, entries []store.Entry) error {
	enc := json.NewEncoder(w)
	for _, e := range entries {
		action := map[string]any{"create": map[string]string{"_index": p.index, "_id": documentID(e)}}
		if err := enc.Encode(action); err != nil {
			return err
		}
		if err := enc.Encode(NewDocument(e)); err != nil {
			return err
		}
	}
	return nil
}

// documentID returns a hash of the content of an entry.
func documentID(e store.Entry) string {
	h := sha256.New()
	for _, s := range []string{e.Source.Node, e.Source.UID, e.Source.Container, e.Source.File} {
		_, _ = io.WriteString(h, s+"\x00") // a hash returns no errors
	}
	_, _ = h.Write(append(binary.LittleEndian.AppendUint64(nil, uint64(e.Time)), byte(e.Stream)))
	_, _ = h.Write(e.Text)
	return base64.RawURLEncoding.EncodeToString(h.Sum(nil)[:15])
}

func (p elasticsearch) accepted(body []byte, entries []store.Entry) (rejected int, again []store.Entry, err error) {
	var response struct {
		Errors bool `json:"errors"`
		Items  []map[string]struct {
			Status int `json:"status"`
		} `json:"items"`
	}
	if err := json.Unmarshal(body, &response); err != nil {
		return 0, nil, fmt.Errorf("parsing response of the bulk API: %w", err)
	}
	if !response.Errors {
		return 0, nil, nil
	}
	if len(response.Items) != len(entries) {
		return 0, nil, fmt.Errorf("the bulk API responded with %d items to %d", len(response.Items), len(entries))
	}
	for i, item := range response.Items {
		for _, result := range item {
			switch {
			case result.Status < 300, result.Status == 409: // it exists already
			case result.Status == 429, result.Status >= 500:
				again = append(again, entries[i])
			default:
				rejected++
			}
		}
	}
	return rejected, again, nil
}

// Document is the JSON form of a record in Elasticsearch and in files.
type Document struct {
	Time      time.Time         `json:"@timestamp"`
	Node      string            `json:"node,omitempty"`
	Namespace string            `json:"namespace,omitempty"`
	Pod       string            `json:"pod,omitempty"`
	UID       string            `json:"uid,omitempty"`
	Container string            `json:"container,omitempty"`
	File      string            `json:"file,omitempty"`
	Stream    string            `json:"stream,omitempty"`
	Labels    map[string]string `json:"labels,omitempty"`
	Message   string            `json:"message"`
}

// NewDocument returns the Document of a record.
func NewDocument(e store.Entry) Document {
	s := e.Source
	return Document{
		Time: time.Unix(0, e.Time).UTC(), Node: s.Node, Namespace: s.Namespace, Pod: s.Pod, UID: s.UID, Container: s.Container, File: s.File,
		Stream: e.Stream.String(), Labels: s.Labels, Message: string(e.Text),
	}
}
