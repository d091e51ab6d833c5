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

// URL follows a document of a web server: a pod, or a list of pods, YAML or
// JSON. A server that cannot be reached leaves the pods as they are.
type URL struct {
	URL    string
	Header http.Header
	// Every is how often it is asked.
	Every    time.Duration
	NodeName string
	Sink     Sink
	Log      *slog.Logger

	known map[string]types.UID // by namespace/name
}

// longestDocument bounds what is taken from a server, in bytes.
const longestDocument = 10 << 20

// Run asks until ctx ends; first is called once after the first answer.
func (u *URL) Run(ctx context.Context, first func()) error {
	u.known = map[string]types.UID{}
	client := &http.Client{Timeout: 10 * time.Second}
	defer client.CloseIdleConnections()
	ticker := time.NewTicker(u.Every)
	defer ticker.Stop()
	told, failed := false, false
	for {
		switch list, err := u.fetch(ctx, client); {
		case ctx.Err() != nil:
			return nil
		case err != nil:
			if !failed {
				u.Log.Warn("fetching static pods failed, trying again", "url", u.URL, "error", err)
			}
			failed = true
		default:
			failed = false
			u.take(list)
			if !told {
				told = true
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
	raw, err := io.ReadAll(io.LimitReader(resp.Body, longestDocument+1))
	if err != nil {
		return nil, err
	}
	if len(raw) > longestDocument {
		return nil, errors.New("the answer is too long")
	}
	return decodeList(raw, u.URL, u.NodeName)
}

// decodeList reads a pod or a list of pods that a server has, as Decode does a
// file.
func decodeList(raw []byte, url, nodeName string) ([]*v1.Pod, error) {
	doc, err := yaml.YAMLToJSON(raw)
	if err != nil {
		return nil, fmt.Errorf("reading the manifest: %w", err)
	}
	var list struct {
		Kind  string            `json:"kind"`
		Items []json.RawMessage `json:"items"`
	}
	if err := json.Unmarshal(doc, &list); err != nil {
		return nil, fmt.Errorf("reading the manifest: %w", err)
	}
	docs := []json.RawMessage{doc}
	if list.Kind == "PodList" || list.Kind == "List" {
		docs = list.Items
	}
	var out []*v1.Pod
	names := map[string]bool{}
	for i, one := range docs {
		// Those of a list need not say what they are.
		var fields map[string]any
		if err := json.Unmarshal(one, &fields); err != nil {
			return nil, fmt.Errorf("reading pod %d: %w", i, err)
		}
		if fields == nil {
			return nil, fmt.Errorf("reading pod %d: there is none", i)
		}
		if list.Kind == "PodList" {
			fields["kind"], fields["apiVersion"] = "Pod", "v1"
		}
		if one, err = json.Marshal(fields); err != nil {
			return nil, fmt.Errorf("reading pod %d: %w", i, err)
		}
		p, err := decode(one, "http", url, nodeName)
		if err != nil {
			return nil, fmt.Errorf("reading pod %d: %w", i, err)
		}
		if name := p.Namespace + "/" + p.Name; names[name] {
			return nil, fmt.Errorf("two pods are named %s", name)
		}
		names[p.Namespace+"/"+p.Name] = true
		out = append(out, p)
	}
	return out, nil
}

// take brings the sink up to what the server has.
func (u *URL) take(list []*v1.Pod) {
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
