package stream

import (
	"encoding/json"
	"fmt"
	"io"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// View is what a page wants to know about each object.
type View string

const (
	// Table is the cells of the columns that kubectl get shows, and the metadata.
	Table View = "table"
	// Full is the whole object, without the record of field managers.
	Full View = "object"
	// Pods and Nodes are the few fields that the overview needs.
	Pods  View = "pods"
	Nodes View = "nodes"
)

// viewer converts objects of the API server to those that the page receives. A viewer serves one watch.
type viewer interface {
	// accept returns the Accept header of requests.
	accept() string
	// list reads a page of a list from r and puts the objects into q.
	list(r io.Reader, q *queue) (metav1.ListMeta, error)
	// event returns the objects of an event, and the resource version of the last one.
	event(raw json.RawMessage) (version string, objects []Object, err error)
}

// views creates the viewers.
var views = map[View]func() viewer{
	Table: func() viewer { return &tableViewer{} },
	Full:  func() viewer { return objectViewer(full) },
	Pods:  func() viewer { return objectViewer(podSummary) },
	Nodes: func() viewer { return objectViewer(nodeSummary) },
}

// identity are the fields of an object's metadata that identify it.
type identity struct {
	UID             string `json:"uid"`
	Namespace       string `json:"namespace"`
	Name            string `json:"name"`
	ResourceVersion string `json:"resourceVersion"`
}

// key returns the key of the object.
func (i identity) key() string {
	if i.UID != "" {
		return i.UID
	}
	return i.Namespace + "/" + i.Name
}

// objectViewer requests whole objects and converts each with the function.
type objectViewer func(raw json.RawMessage) (any, error)

func (objectViewer) accept() string { return "application/json" }

func (v objectViewer) list(r io.Reader, q *queue) (metav1.ListMeta, error) {
	var page struct {
		Metadata metav1.ListMeta   `json:"metadata"`
		Items    []json.RawMessage `json:"items"`
	}
	if err := json.NewDecoder(r).Decode(&page); err != nil {
		return metav1.ListMeta{}, err
	}
	objects := make([]Object, 0, len(page.Items))
	for _, raw := range page.Items {
		_, object, err := v.convert(raw)
		if err != nil {
			return metav1.ListMeta{}, err
		}
		objects = append(objects, object)
	}
	q.put(objects...)
	return page.Metadata, nil
}

func (v objectViewer) event(raw json.RawMessage) (string, []Object, error) {
	version, object, err := v.convert(raw)
	return version, []Object{object}, err
}

func (v objectViewer) convert(raw json.RawMessage) (version string, object Object, err error) {
	var id struct {
		Metadata identity `json:"metadata"`
	}
	if err := json.Unmarshal(raw, &id); err != nil {
		return "", Object{}, err
	}
	value, err := v(raw)
	if err != nil {
		return "", Object{}, err
	}
	data, err := json.Marshal(value)
	return id.Metadata.ResourceVersion, Object{Key: id.Metadata.key(), Value: data}, err
}

// full removes the record of field managers from an object.
func full(raw json.RawMessage) (any, error) {
	var object, meta map[string]json.RawMessage
	if err := json.Unmarshal(raw, &object); err != nil {
		return nil, err
	}
	if err := json.Unmarshal(object["metadata"], &meta); err != nil {
		return nil, fmt.Errorf("metadata: %w", err)
	}
	if _, ok := meta["managedFields"]; ok {
		delete(meta, "managedFields")
		data, err := json.Marshal(meta)
		if err != nil {
			return nil, err
		}
		object["metadata"] = data
	}
	return object, nil
}

// tableViewer requests the rows that the API server prints.
type tableViewer struct{}

// row is a row of a table as the page receives it.
type row struct {
	Name      string            `json:"name"`
	Namespace string            `json:"ns,omitempty"`
	Created   string            `json:"created,omitempty"`
	Deleted   string            `json:"deleted,omitempty"`
	Labels    map[string]string `json:"labels,omitempty"`
	Cells     json.RawMessage   `json:"cells"`
}

// table is the part of a metav1.Table that is used.
type table struct {
	Metadata metav1.ListMeta `json:"metadata"`
	Columns  json.RawMessage `json:"columnDefinitions"`
	Rows     []struct {
		Cells  json.RawMessage `json:"cells"`
		Object struct {
			Metadata struct {
				identity
				Created string            `json:"creationTimestamp"`
				Deleted string            `json:"deletionTimestamp"`
				Labels  map[string]string `json:"labels"`
			} `json:"metadata"`
		} `json:"object"`
	} `json:"rows"`
}

func (*tableViewer) accept() string {
	return "application/json;as=Table;v=v1;g=meta.k8s.io"
}

func (v *tableViewer) list(r io.Reader, q *queue) (metav1.ListMeta, error) {
	var t table
	if err := json.NewDecoder(r).Decode(&t); err != nil {
		return metav1.ListMeta{}, err
	}
	if len(t.Columns) > 0 && string(t.Columns) != "null" {
		q.setColumns(t.Columns)
	}
	_, objects, err := t.objects()
	q.put(objects...)
	return t.Metadata, err
}

func (v *tableViewer) event(raw json.RawMessage) (string, []Object, error) {
	var t table
	if err := json.Unmarshal(raw, &t); err != nil {
		return "", nil, err
	}
	return t.objects()
}

// objects returns the rows, and the resource version of the last one.
func (t *table) objects() (version string, objects []Object, err error) {
	for _, r := range t.Rows {
		m := r.Object.Metadata
		data, err := json.Marshal(row{Name: m.Name, Namespace: m.Namespace, Created: m.Created, Deleted: m.Deleted, Labels: m.Labels, Cells: r.Cells})
		if err != nil {
			return "", nil, err
		}
		objects = append(objects, Object{Key: m.key(), Value: data})
		version = m.ResourceVersion
	}
	return version, objects, nil
}
