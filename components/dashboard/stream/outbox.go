package stream

import (
	"encoding/json"
	"slices"
	"sync"
)

// batchSize is the largest number of objects in one batch, so that the page does not parse a batch for longer than a few
// milliseconds.
const batchSize = 500

// message contains the changes of one watch.
type message struct {
	ID int `json:"id"`
	// Begin means that a list follows: when Synced is set in this message or a later one, objects that were not sent since
	// Begin do not exist.
	Begin bool `json:"begin,omitempty"`
	// Columns are the columns of a table. They precede its rows.
	Columns json.RawMessage `json:"columns,omitempty"`
	// Objects are new and changed objects, and Deleted the keys of deleted ones.
	Objects []Object `json:"objects,omitempty"`
	Deleted []string `json:"deleted,omitempty"`
	// Synced means that all objects of the list have been sent.
	Synced bool `json:"synced,omitempty"`
	// Error is why there are no changes. It is cleared by the next message without one.
	Error *Failure `json:"error,omitempty"`
}

// Failure is an error of a watch.
type Failure struct {
	// Code is the HTTP status code of the API server, or 0 if it cannot be reached.
	Code    int    `json:"code"`
	Message string `json:"message"`
	// Retries means that the server tries again. Otherwise, the watch has stopped.
	Retries bool `json:"retries,omitempty"`
}

// Object is an object as the page shows it.
type Object struct {
	// Key identifies the object: its UID, or its namespace and name if it has none.
	Key   string          `json:"k"`
	Value json.RawMessage `json:"v"`
}

// outbox contains the changes of all watches of a connection that have not been sent. It is safe for concurrent use.
type outbox struct {
	// changed receives a value when there is something to send.
	changed chan struct{}

	mu     sync.Mutex
	queues []*queue
}

func newOutbox() *outbox { return &outbox{changed: make(chan struct{}, 1)} }

// open returns the queue of a new watch.
func (o *outbox) open(id int) *queue {
	q := &queue{outbox: o, id: id}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.queues = append(o.queues, q)
	return q
}

// take removes at most batchSize changes and returns them.
func (o *outbox) take() []message {
	o.mu.Lock()
	defer o.mu.Unlock()
	var batch []message
	room := batchSize
	for _, q := range o.queues {
		if q.dirty && room > 0 {
			var m message
			m, room = q.take(room)
			batch = append(batch, m)
		}
	}
	return batch
}

// queue contains the unsent changes of one watch. The fields are guarded by outbox.mu.
type queue struct {
	outbox *outbox
	id     int

	dirty, begin, synced bool
	columns              json.RawMessage
	order                []string // keys of pending in the order of their first change
	// pending are the unsent objects by key, nil for deleted ones.
	pending map[string]json.RawMessage
	failure *Failure
}

// update calls change with the queue locked, and notifies the sender.
func (q *queue) update(change func()) {
	q.outbox.mu.Lock()
	defer q.outbox.mu.Unlock()
	change()
	q.dirty = true
	select {
	case q.outbox.changed <- struct{}{}:
	default: // the sender has not seen the last notification
	}
}

// startList discards changes that were not sent, because a new list contains them.
func (q *queue) startList() {
	q.update(func() { q.begin, q.synced, q.failure, q.order, q.pending = true, false, nil, nil, nil })
}

func (q *queue) endList()                           { q.update(func() { q.synced = true }) }
func (q *queue) fail(f *Failure)                    { q.update(func() { q.failure = f }) }
func (q *queue) setColumns(columns json.RawMessage) { q.update(func() { q.columns = columns }) }

// put adds new and changed objects.
func (q *queue) put(objects ...Object) {
	q.update(func() {
		q.failure = nil
		for _, o := range objects {
			q.set(o.Key, o.Value)
		}
	})
}

// delete adds the deletion of an object.
func (q *queue) delete(key string) { q.update(func() { q.failure = nil; q.set(key, nil) }) }

func (q *queue) set(key string, value json.RawMessage) {
	if q.pending == nil {
		q.pending = map[string]json.RawMessage{}
	}
	if _, ok := q.pending[key]; !ok {
		q.order = append(q.order, key)
	}
	q.pending[key] = value
}

// close removes the queue from the outbox.
func (q *queue) close() {
	q.outbox.mu.Lock()
	defer q.outbox.mu.Unlock()
	q.outbox.queues = slices.DeleteFunc(q.outbox.queues, func(other *queue) bool { return other == q })
}

// take removes at most room changes and returns them, and the room that is left. The caller holds outbox.mu.
func (q *queue) take(room int) (message, int) {
	m := message{ID: q.id, Begin: q.begin, Columns: q.columns, Error: q.failure}
	n := min(room, len(q.order))
	for _, key := range q.order[:n] {
		if value := q.pending[key]; value != nil {
			m.Objects = append(m.Objects, Object{Key: key, Value: value})
		} else {
			m.Deleted = append(m.Deleted, key)
		}
		delete(q.pending, key)
	}
	q.order = q.order[n:]
	q.begin, q.columns = false, nil
	if len(q.order) == 0 {
		q.order = nil
		m.Synced, q.synced, q.dirty = q.synced, false, false
	}
	return m, room - n
}
