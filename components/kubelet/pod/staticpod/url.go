package staticpod

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/yaml"
)

// URL polls a web server for static pods: a pod or a list of pods, in YAML or JSON. If the document cannot be
// fetched or is invalid, the static pods remain unchanged.
type URL struct {
	URL    string
	Header http.Header
	// Every is the polling interval.
	Every    time.Duration
	NodeName string
	Sink     Sink
	Log      *slog.Logger

	known map[string]types.UID // by namespace/name
}

// maxDocumentSize is the maximum size in bytes of the document with static pods that the web server returns.
const maxDocumentSize = 10 << 20

// Run passes the pods of the document to the sink, and polls the server until ctx is done. It calls first once,
// after the first valid response. Errors are retried in the next interval; only the first of successive errors
// is logged. It always returns nil.
func (u *URL) Run(ctx context.Context, first func()) error {
	u.known = map[string]types.UID{}
	client := &http.Client{Timeout: 10 * time.Second}
	defer client.CloseIdleConnections()
	ticker := time.NewTicker(u.Every)
	defer ticker.Stop()
	delivered, failed := false, false
	for {
		switch list, err := u.fetch(ctx, client); {
		case ctx.Err() != nil:
			return nil
		case err != nil:
			if !failed {
				u.Log.Warn("fetching static pods from a URL failed; the current static pods continue to run, retrying after the interval", "interval", u.Every, "url", u.URL, "err", err)
			}
			failed = true
		default:
			failed = false
			u.update(list)
			if !delivered {
				delivered = true
				first()
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
	}
}

// fetch returns the pods of the document. It returns an error if the server does not respond with status 200,
// if the document is too long, or if one of the pods is invalid.
func (u *URL) fetch(ctx context.Context, client *http.Client) ([]*v1.Pod, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, u.URL, nil)
	if err != nil {
		return nil, err
	}
	maps.Copy(req.Header, u.Header)
	resp, err := client.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s: %s", u.URL, resp.Status)
	}
	raw, err := io.ReadAll(io.LimitReader(resp.Body, maxDocumentSize+1))
	if err != nil {
		return nil, err
	}
	if len(raw) > maxDocumentSize {
		return nil, errors.New("response is too long")
	}
	return decodeList(raw, u.URL, u.NodeName)
}

// decodeList decodes the document raw from url, a pod or a list of pods in YAML or JSON. It returns them as static
// pods of the node nodeName, with UIDs that are hashes of their content and url. An error in one pod fails the
// whole list.
func decodeList(raw []byte, url, nodeName string) ([]*v1.Pod, error) {
	doc, err := yaml.YAMLToJSON(raw)
	if err != nil {
		return nil, fmt.Errorf("decoding manifest: %w", err)
	}
	var list struct {
		Kind  string            `json:"kind"`
		Items []json.RawMessage `json:"items"`
	}
	if err := json.Unmarshal(doc, &list); err != nil {
		return nil, fmt.Errorf("decoding manifest: %w", err)
	}
	docs := []json.RawMessage{doc}
	if list.Kind == "PodList" || list.Kind == "List" {
		docs = list.Items
	}
	var out []*v1.Pod
	names := map[string]bool{}
	for i, one := range docs {
		// Items of a PodList need not have kind and apiVersion.
		var fields map[string]any
		if err := json.Unmarshal(one, &fields); err != nil {
			return nil, fmt.Errorf("decoding pod %d: %w", i, err)
		}
		if fields == nil {
			return nil, fmt.Errorf("decoding pod %d: no pod", i)
		}
		if list.Kind == "PodList" {
			fields["kind"], fields["apiVersion"] = "Pod", "v1"
		}
		if one, err = json.Marshal(fields); err != nil {
			return nil, fmt.Errorf("decoding pod %d: %w", i, err)
		}
		p, err := decode(one, "http", url, nodeName)
		if err != nil {
			return nil, fmt.Errorf("decoding pod %d: %w", i, err)
		}
		if name := p.Namespace + "/" + p.Name; names[name] {
			return nil, fmt.Errorf("two pods are named %s", name)
		}
		names[p.Namespace+"/"+p.Name] = true
		out = append(out, p)
	}
	return out, nil
}

// update passes the changes from the pods known before to list to the sink. A pod with a new UID, because its
// content has changed, replaces the one of that name.
func (u *URL) update(list []*v1.Pod) {
	seen := map[string]bool{}
	for _, p := range list {
		name := p.Namespace + "/" + p.Name
		seen[name] = true
		if u.known[name] == p.UID {
			continue
		}
		if old, ok := u.known[name]; ok {
			u.Sink.Remove(old)
		}
		u.known[name] = p.UID
		p.Annotations[annotationSeen] = time.Now().Format(time.RFC3339Nano)
		u.Sink.Set(p)
	}
	for name, uid := range u.known {
		if !seen[name] {
			delete(u.known, name)
			u.Sink.Remove(uid)
		}
	}
}
