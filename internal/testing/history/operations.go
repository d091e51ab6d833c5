package history

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/anishathalye/porcupine"
)

// checkTimeout limits the search for a possible order of the operations. The search takes
// milliseconds, because hardly any operation could be at more than one position of the log.
const checkTimeout = 2 * time.Minute

// maxKeys is the maximum number of different keys in the requests of a History.
const maxKeys = 8

// state is the state of the store in the model for porcupine, the library that searches for an order of the operations
// that explains all responses.
type state struct {
	// at is the position in the log: the first at events have happened.
	at int
	// ended is set after the log is complete and all clients have their responses.
	ended bool
	// lost counts, for each key, the events that deletions without a response have caused.
	lost [maxKeys]int
}

// lostDelete is the input of an unconditional deletion without a response. Such deletions of a key are
// interchangeable once they were called, so they are used in the order of their calls. Otherwise the
// search would try all subsets.
type lostDelete struct {
	Request
	key, number int
}

// end is the input of a pseudo operation that is possible only when all events of the log are explained by operations.
// It makes the check fail if an event is left over.
type end struct{}

// checkOperations checks that the operations are linearizable and explain the whole log.
func (h *History) checkOperations(s *states) error {
	ops, err := h.inputs()
	if err != nil {
		return err
	}
	model := porcupine.Model{
		Init: func() any { return state{} },
		Step: func(is, input, output any) (bool, any) {
			next, ok := s.step(is.(state), input, output)
			return ok, next
		},
	}
	switch porcupine.CheckOperationsTimeout(model, ops, checkTimeout) {
	case porcupine.Ok:
		return nil
	case porcupine.Illegal:
		_, info := porcupine.CheckOperationsVerbose(model, ops, checkTimeout)
		return s.explain(ops, info.PartialLinearizationsOperations())
	default:
		return fmt.Errorf("checking %d operations: no result after %s", len(ops), checkTimeout)
	}
}

// inputs returns the operations in the form that porcupine requires, without those that cannot have had an effect, and
// the pseudo operation end.
func (h *History) inputs() ([]porcupine.Operation, error) {
	written := map[string]bool{}
	for _, ev := range h.Log {
		written[ev.Value] = true
	}
	keys, lost := map[string]int{}, map[string]int{}
	sorted := slices.SortedStableFunc(slices.Values(h.Operations), func(a, b Operation) int { return cmp.Compare(a.Call, b.Call) })
	var ops []porcupine.Operation
	for _, op := range sorted {
		in := op.Request
		out := porcupine.Operation{ClientId: op.Client, Input: in, Output: op.Response, Call: int64(op.Call), Return: int64(op.Return)}
		if op.Response.Result == Unknown {
			// A read without a response has no effect. Neither has a write whose value is not in the log.
			if !in.Verb.write() || in.Verb != Delete && !written[in.Value] {
				continue
			}
			// The write may happen after the client has stopped waiting.
			out.Return = math.MaxInt64
			if in.Verb == Delete && in.Revision == 0 {
				if _, exists := keys[in.Key]; !exists {
					keys[in.Key] = len(keys)
				}
				out.Input = lostDelete{in, keys[in.Key], lost[in.Key]}
				lost[in.Key]++
			}
		}
		ops = append(ops, out)
	}
	if len(keys) > maxKeys {
		return nil, fmt.Errorf("more than %d keys", maxKeys)
	}
	return append(ops, porcupine.Operation{Input: end{}, Output: Response{}, Call: math.MaxInt64 - 1, Return: math.MaxInt64}), nil
}

// step reports whether an operation with this input and output is possible in the state is of the
// model, and returns the state after it.
func (s *states) step(is state, input, output any) (next state, ok bool) {
	var in Request
	out := output.(Response)
	switch input := input.(type) {
	case end:
		is.ended = is.at == len(s.log)
		return is, is.ended
	case lostDelete:
		if is.ended {
			return is, true // it never happened
		}
		in = input.Request
		if is.lost[input.key] != input.number {
			return is, false
		}
		is.lost[input.key]++
	case Request:
		in = input
	}
	objects := s.objects[is.at]
	object, exists := objects[in.Key]
	matches := in.Revision == 0 || in.Revision == object.Revision
	switch out.Result {
	case NotFound:
		return is, !exists
	case Exists:
		return is, exists
	case Conflict:
		return is, exists && !matches
	case Unknown:
		if in.Verb == Delete && is.ended {
			return is, true
		}
	case OK:
		switch in.Verb {
		case Get:
			return is, exists && object == out.Object
		case List:
			return is, maps.Equal(objects, out.Objects) && s.includes(is.at, out.Revision)
		}
	}
	// A write is possible at its event, if the object allows it.
	if is.at == len(s.log) || exists == (in.Verb == Create) || !matches {
		return is, false
	}
	ev := s.log[is.at]
	if ev.Key != in.Key || ev.Value != in.Value {
		return is, false
	}
	if out.Result == OK && in.Verb != Delete && (out.Object != Object{Value: ev.Value, Revision: ev.Revision}) {
		return is, false
	}
	is.at++
	return is, true
}

// explain returns an error that describes why ops are not linearizable: the first operations
// without a position in the longest of the partial linearizations that porcupine has found.
func (s *states) explain(ops []porcupine.Operation, partial [][][]porcupine.Operation) error {
	var longest []porcupine.Operation
	for _, sequences := range partial {
		for _, sequence := range sequences {
			if len(sequence) > len(longest) {
				longest = sequence
			}
		}
	}
	type id struct {
		client int
		call   int64
	}
	done := map[id]bool{}
	var is state
	for _, op := range longest {
		done[id{op.ClientId, op.Call}] = true
		is, _ = s.step(is, op.Input, op.Output)
	}
	missing := slices.DeleteFunc(slices.Clone(ops), func(op porcupine.Operation) bool { return done[id{op.ClientId, op.Call}] })
	slices.SortStableFunc(missing, func(a, b porcupine.Operation) int { return cmp.Compare(a.Return, b.Return) })
	var b strings.Builder
	fmt.Fprintf(&b, "the history is not linearizable: %d of %d operations have a position in the log of %d events\nposition %d, objects %+v",
		len(longest), len(ops), len(s.log), is.at, s.objects[is.at])
	for _, ev := range s.log[is.at:min(is.at+3, len(s.log))] {
		fmt.Fprintf(&b, "\nnext event: %+v", ev)
	}
	for _, op := range missing[:min(10, len(missing))] {
		fmt.Fprintf(&b, "\nno position: client %d, %s to %s: %+v: %+v", op.ClientId, time.Duration(op.Call), time.Duration(op.Return), op.Input, op.Output)
	}
	return errors.New(b.String())
}
