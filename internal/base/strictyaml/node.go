// Package strictyaml reads configuration files in YAML. It reports each error with the file and the line: duplicate keys,
// unknown fields, and values of the wrong type.
//
// Parse returns trees of nodes, which know their position. Merge combines the trees of several files, and Decode converts a tree
// to a Go value. Only values that JSON can express are accepted, as in Kubernetes manifests.
package strictyaml

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strconv"
)

// Node is a value of a document. Exactly one of Fields, Items and Scalar is used, as Kind specifies.
type Node struct {
	Kind Kind
	// File and Line are the position of the value. Lines start at 1.
	File string
	Line int
	// Fields of a mapping, in the order of the file. Keys are unique.
	Fields []Field
	// Items of a list.
	Items []*Node
	// Scalar is a string, a bool, a json.Number or nil.
	Scalar any
}

// Field is a key of a mapping with its value.
type Field struct {
	Key string
	// File and Line are the position of the key.
	File  string
	Line  int
	Value *Node
}

// Kind is the kind of a Node.
type Kind int

// Scalar, Mapping and List are the kinds of nodes. null is a Scalar.
const (
	Scalar Kind = iota
	Mapping
	List
)

// Position returns FILE:LINE.
func (n *Node) Position() string { return position(n.File, n.Line) }

// Position returns FILE:LINE of the key.
func (f Field) Position() string { return position(f.File, f.Line) }

// position returns FILE:LINE.
func position(file string, line int) string { return file + ":" + strconv.Itoa(line) }

// Get returns the value of a key; nil if n is not a mapping or does not have the key.
func (n *Node) Get(key string) *Node {
	if i := n.index(key); i >= 0 {
		return n.Fields[i].Value
	}
	return nil
}

// Text returns the value of a key if it is a string, otherwise "".
func (n *Node) Text(key string) string {
	if v := n.Get(key); v != nil {
		text, _ := v.Scalar.(string)
		return text
	}
	return ""
}

// index returns the index of a key in Fields; -1 if there is none. It accepts a nil Node.
func (n *Node) index(key string) int {
	if n == nil {
		return -1
	}
	for i := range n.Fields {
		if n.Fields[i].Key == key {
			return i
		}
	}
	return -1
}

// JSON returns the value as JSON. The keys are in the order of the file.
func (n *Node) JSON() []byte {
	var out bytes.Buffer
	n.write(&out)
	return out.Bytes()
}

// write appends the value as JSON to out.
func (n *Node) write(out *bytes.Buffer) {
	switch n.Kind {
	case Mapping:
		out.WriteByte('{')
		for i, f := range n.Fields {
			if i > 0 {
				out.WriteByte(',')
			}
			writeScalar(out, f.Key)
			out.WriteByte(':')
			f.Value.write(out)
		}
		out.WriteByte('}')
	case List:
		out.WriteByte('[')
		for i, item := range n.Items {
			if i > 0 {
				out.WriteByte(',')
			}
			item.write(out)
		}
		out.WriteByte(']')
	case Scalar:
		writeScalar(out, n.Scalar)
	}
}

// writeScalar appends a scalar as JSON to out. It panics if value has another type than those of Node.Scalar.
func writeScalar(out *bytes.Buffer, value any) {
	text, err := json.Marshal(value)
	if err != nil { // scalars are strings, bools, numbers in the syntax of JSON, or nil
		panic(fmt.Sprintf("strictyaml: encoding %#v: %v", value, err))
	}
	out.Write(text)
}

// describe returns the type of the value for error messages.
func (n *Node) describe() string {
	switch n.Kind {
	case Mapping:
		return "a mapping"
	case List:
		return "a list"
	case Scalar:
	}
	switch n.Scalar.(type) {
	case nil:
		return "null"
	case bool:
		return "a boolean"
	case json.Number:
		return "a number"
	}
	return "a string"
}
