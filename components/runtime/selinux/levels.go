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

// policyCategories is the number of categories in policies for containers.
const policyCategories = 1024

// levels tracks the SELinux levels in use, with their number of users: a pod may request a specific
// level, and the containers of a pod share one.
type levels struct {
	// pairs is the number of available levels.
	pairs int

	mu    sync.Mutex // guards taken
	inUse map[string]int
}

func newLevels(categories int) *levels {
	return &levels{pairs: categories * (categories - 1) / 2, inUse: map[string]int{}}
}

// acquire adds a user of a level.
func (l *levels) acquire(level string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.inUse[canonical(level)]++
}

// release removes a user of a level.
func (l *levels) release(level string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	level = canonical(level)
	if l.inUse[level]--; l.inUse[level] <= 0 {
		delete(l.inUse, level)
	}
}

// allocate allocates an unused level. It selects one at random, so that a level is not reused soon:
// files of a deleted pod may still have it.
func (l *levels) allocate() (string, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	start := rand.N(l.pairs)
	for i := range l.pairs {
		level := pair((start + i) % l.pairs)
		if l.inUse[level] == 0 {
			l.inUse[level] = 1
			return level, nil
		}
	}
	return "", errors.New("all SELinux levels are in use")
}

// pair returns the level with the nth pair of categories, lower category first.
func pair(n int) string {
	high := 1
	for n >= high {
		n -= high
		high++
	}
	return fmt.Sprintf("s0:c%d,c%d", n, high)
}

// canonical converts a level with two categories to the form of pair. Other levels are returned
// unchanged.
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
	// c1.c3 is a range of three categories.
	if len(numbers) != 2 || strings.Contains(list, ".") && numbers[1]-numbers[0] != 1 {
		return level
	}
	slices.Sort(numbers)
	return fmt.Sprintf("%s:c%d,c%d", sensitivity, numbers[0], numbers[1])
}
