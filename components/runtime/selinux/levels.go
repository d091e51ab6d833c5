package selinux

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
)

// policyCategories are as many as policies for containers have.
const policyCategories = 1024

// levels knows which levels are taken, and by how many: some are asked for by
// name, and the containers of a pod share one.
type levels struct {
	// pairs is how many levels there are to give.
	pairs int

	mu    sync.Mutex // guards taken
	taken map[string]int
}

func newLevels(categories int) *levels {
	return &levels{pairs: categories * (categories - 1) / 2, taken: map[string]int{}}
}

// take counts one more user of a level.
func (l *levels) take(level string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.taken[canonical(level)]++
}

// release counts one user less.
func (l *levels) release(level string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	level = canonical(level)
	if l.taken[level]--; l.taken[level] <= 0 {
		delete(l.taken, level)
	}
}

// next takes a level that nobody has. They are drawn, so that one is not used
// again soon: files of a pod that is gone may still have it.
func (l *levels) next() (string, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	start := rand.N(l.pairs)
	for i := range l.pairs {
		level := pair((start + i) % l.pairs)
		if l.taken[level] == 0 {
			l.taken[level] = 1
			return level, nil
		}
	}
	return "", errors.New("every SELinux level is taken")
}

// pair returns the nth pair of two categories, of which the lower comes first.
func pair(n int) string {
	high := 1
	for n >= high {
		n -= high
		high++
	}
	return fmt.Sprintf("s0:c%d,c%d", n, high)
}

// canonical writes a level as pair does, if it is one of two categories, however
// they are written.
func canonical(level string) string {
	sensitivity, list, found := strings.Cut(level, ":")
	if !found {
		return level
	}
	var numbers []int
	for _, part := range strings.FieldsFunc(list, func(r rune) bool { return r == ',' || r == '.' }) {
		n, err := strconv.Atoi(strings.TrimPrefix(part, "c"))
		if err != nil || !strings.HasPrefix(part, "c") {
			return level
		}
		numbers = append(numbers, n)
	}
	// c1.c3 are three.
	if len(numbers) != 2 || strings.Contains(list, ".") && numbers[1]-numbers[0] != 1 {
		return level
	}
	slices.Sort(numbers)
	return fmt.Sprintf("%s:c%d,c%d", sensitivity, numbers[0], numbers[1])
}
