// Package record defines log records and the places they come from, and converts the lines of log files to records.
package record

import (
	"bytes"
	"errors"
	"time"
)

// Source describes where records come from: a container of a pod, or a log file of a node. Sources are shared and must not be
// modified.
type Source struct {
	// Node is the name of the node.
	Node string `json:"node,omitempty"`
	// Namespace, Pod, UID and Container identify the container. They are empty for a log file of a node.
	Namespace string `json:"namespace,omitempty"`
	Pod       string `json:"pod,omitempty"`
	UID       string `json:"uid,omitempty"`
	Container string `json:"container,omitempty"`
	// Labels are the labels of the pod. They are nil if the pod was deleted before its log was read for the first time.
	Labels map[string]string `json:"labels,omitempty"`
	// File is the name of a log file of the node, without its extension. It is empty for containers.
	File string `json:"file,omitempty"`
}

// Stream is the output stream of a container that a record was written to.
type Stream byte

// The streams of containers. Log files of nodes have None.
const (
	None Stream = iota
	Stdout
	Stderr
)

// String returns "stdout", "stderr" or "".
func (s Stream) String() string {
	switch s {
	case Stdout:
		return "stdout"
	case Stderr:
		return "stderr"
	}
	return ""
}

// Record is one log message.
type Record struct {
	// Time is the time of the record in nanoseconds since 1970.
	Time   int64
	Stream Stream
	// Text is the message without a trailing newline. It can contain newlines if lines were joined.
	Text []byte
}

// FileID identifies a log file, also after it was renamed or compressed.
type FileID struct {
	// Generation is the number of times that the container had been restarted when the file was created.
	Generation uint64
	// Hash is the FNV-1a hash of the first HashLen bytes of the uncompressed file. HashLen is 0 for an empty file.
	Hash    uint64
	HashLen uint32
}

// Position is a place in the log files of a source: records before it have been stored.
type Position struct {
	File FileID
	// Offset is the number of bytes of the uncompressed file before the position.
	Offset int64
}

// Entry is one line of a log file of a container, a whole output line or a part of it.
type Entry struct {
	Record
	// Partial means that the next entry of the stream continues the line.
	Partial bool
}

// errMalformed is the error of ParseCRI.
var errMalformed = errors.New("not a line in the log format of the CRI")

// ParseCRI parses a line of a container's log, without its newline: TIME STREAM TAG TEXT. The text refers to line.
//
// https://github.com/kubernetes/design-proposals-archive/blob/main/node/kubelet-cri-logging.md
func ParseCRI(line []byte) (Entry, error) {
	stamp, rest, ok := bytes.Cut(line, []byte{' '})
	if !ok {
		return Entry{}, errMalformed
	}
	at, err := time.Parse(time.RFC3339Nano, string(stamp))
	if err != nil {
		return Entry{}, errMalformed
	}
	stream, rest, ok := bytes.Cut(rest, []byte{' '})
	if !ok {
		return Entry{}, errMalformed
	}
	e := Entry{Record: Record{Time: at.UnixNano()}}
	switch string(stream) {
	case "stdout":
		e.Stream = Stdout
	case "stderr":
		e.Stream = Stderr
	default:
		return Entry{}, errMalformed
	}
	// An empty text may be written without the space before it.
	tags, text, _ := bytes.Cut(rest, []byte{' '})
	// The first tag, up to a colon, is F or P. Later versions of the format may add others.
	tag, _, _ := bytes.Cut(tags, []byte{':'})
	switch string(tag) {
	case "F":
	case "P":
		e.Partial = true
	default:
		return Entry{}, errMalformed
	}
	e.Text = text
	return e, nil
}

// ParsePlain parses a line of a log file of a node. The time is that of the attribute "time" at the beginning of the line, in
// the formats text and JSON of the project, or else now.
func ParsePlain(line []byte, now int64) Entry {
	e := Entry{Record: Record{Time: now, Text: line}}
	for _, prefix := range []string{"time=", `{"time":"`} {
		rest, ok := bytes.CutPrefix(line, []byte(prefix))
		if !ok {
			continue
		}
		if end := bytes.IndexAny(rest, ` ",`); end > 0 {
			if at, err := time.Parse(time.RFC3339Nano, string(rest[:end])); err == nil {
				e.Time = at.UnixNano()
			}
		}
	}
	return e
}
