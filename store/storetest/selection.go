package storetest

import (
	"reflect"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/onceward/onceward/inbox"
)

func selectionRules[Tx any]() []rule[Tx] {
	return []rule[Tx]{
		{"EveryFieldSelectsAloneAndTogether", everyFieldSelects[Tx]},
		{"DiscardDeletesWhatTheListShowed", discardDeletesWhatTheListShowed[Tx]},
		{"StrangeIDsAndTopicsSelectExactly", func(f *fixture[Tx]) {
			var letters []inbox.DeadLetter
			for _, id := range strangeIDs() {
				letter := letterOf(id)
				letter.Message.Topic = "topic " + id
				letter.Message.Key = []byte(id)
				letters = append(letters, letter)
			}
			f.add(letters...)
			for _, id := range strangeIDs() {
				for name, filter := range map[string]inbox.Filter{
					"MessageID": {MessageID: id}, "Topic": {Topic: "topic " + id}, "Key": {Key: []byte(id)},
				} {
					if got := idsOf(f.letters(consumer, filter)); !slices.Equal(got, []string{id}) {
						f.Errorf("%s %.30q selects %.100q", name, id, got)
					}
				}
			}
		}},
		{"LimitTakesTheOldest", func(f *fixture[Tx]) {
			f.add(letterOf("a"), letterOf("b"), letterOf("c"))
			if got := idsOf(f.letters(consumer, inbox.Filter{Limit: 2})); !slices.Equal(got, []string{"a", "b"}) {
				f.Fatalf("limit 2 selects %q", got)
			}
			f.discard(inbox.Filter{Limit: 2}, 2)
			f.wantLetters(consumer, "c")
		}},
		{"AfterLeavesOutOlderNumbers", func(f *fixture[Tx]) {
			f.add(letterOf("a"), letterOf("b"), letterOf("c"))
			second := f.letters(consumer, inbox.Filter{})[1].Number
			if got := idsOf(f.letters(consumer, inbox.Filter{After: second})); !slices.Equal(got, []string{"c"}) {
				f.Fatalf("after the second selects %q", got)
			}
			f.discard(inbox.Filter{After: second}, 1)
			f.wantLetters(consumer, "a", "b")
		}},
		{"BriefListLeavesOutPayloadAndHeaders", briefListLeavesOut[Tx]},
		{"EmptyListOfNumbersSelectsNothing", func(f *fixture[Tx]) {
			// Whoever computed an empty list must not discard everything.
			f.add(letterOf("a"))
			if got := f.letters(consumer, inbox.Filter{Numbers: []int64{}}); len(got) != 0 {
				f.Errorf("selects %q", idsOf(got))
			}
			f.discard(inbox.Filter{Numbers: []int64{}}, 0)
			f.wantLetters(consumer, "a")
		}},
	}
}

func briefListLeavesOut[Tx any](f *fixture[Tx]) {
	messages := strangeMessages()
	var letters []inbox.DeadLetter
	for i, message := range messages {
		letter := letterOf("")
		letter.Message, letter.ParksKey = message, i%2 == 0 && message.Key != nil
		letters = append(letters, letter)
	}
	f.add(letters...)
	whole := f.letters(consumer, inbox.Filter{})
	brief := f.letters(consumer, inbox.Filter{Brief: true})
	if len(brief) != len(whole) {
		f.Fatalf("%d of %d are listed", len(brief), len(whole))
	}
	for i := range brief {
		if m := brief[i].Message; m.Payload != nil || m.Headers != nil {
			f.Errorf("message %d (%.20q): %d bytes of payload, headers %.60q", i, m.ID, len(m.Payload), m.Headers)
		}
		want := whole[i]
		want.Message.Payload, want.Message.Headers = nil, nil
		if !reflect.DeepEqual(brief[i], want) {
			f.Errorf("the rest of message %d (%.20q) differs", i, want.Message.ID)
		}
	}
	f.discard(inbox.Filter{Brief: true}, len(letters))
}

// addVaried adds dead letters "0" to "5" that differ in every field a Filter
// looks at: 0, 1 and 2 two hours ago, 3, 4 and 5 now. It returns their numbers.
func (f *fixture[Tx]) addVaried() []int64 {
	f.Helper()
	letters := make([]inbox.DeadLetter, 6)
	for i := range letters {
		letters[i] = letterOf(strconv.Itoa(i))
		letters[i].Reason = []inbox.Reason{inbox.ReasonAttempts, inbox.ReasonPermanent}[i%2]
		letters[i].Message.Topic = []string{topic, otherTopic}[i/2%2]
	}
	letters[1].Message.Key = []byte{}
	letters[2].Message.Key = []byte("k")
	letters[3].Message.Key = []byte("k")
	letters[4].Message.Key = []byte("\x00\xff")
	letters[5].Message.ID = "0" // A redelivery that was parked once more.
	f.add(letters[:3]...)
	f.db.Age(f.T, 2*time.Hour)
	f.add(letters[3:]...)
	var numbers []int64
	for _, letter := range f.letters(consumer, inbox.Filter{}) {
		numbers = append(numbers, letter.Number)
	}
	if len(numbers) != 6 {
		f.Fatalf("%d dead letters", len(numbers))
	}
	return numbers
}

type selection struct {
	name   string
	filter inbox.Filter
	want   []int
}

func selections(numbers []int64, hourAgo time.Time) []selection {
	return []selection{
		{"nothing set", inbox.Filter{}, []int{0, 1, 2, 3, 4, 5}},
		{"one number", inbox.Filter{Numbers: []int64{numbers[4]}}, []int{4}},
		{"numbers in any order, repeated and unknown", inbox.Filter{Numbers: []int64{numbers[4], numbers[1], numbers[4], 1 << 60}}, []int{1, 4}},
		{"reason", inbox.Filter{Reason: inbox.ReasonPermanent}, []int{1, 3, 5}},
		{"reason of none", inbox.Filter{Reason: inbox.ReasonTooOld}, nil},
		{"topic", inbox.Filter{Topic: otherTopic}, []int{2, 3}},
		{"message ID", inbox.Filter{MessageID: "0"}, []int{0, 5}},
		{"key", inbox.Filter{Key: []byte("k")}, []int{2, 3}},
		{"empty key", inbox.Filter{Key: []byte{}}, []int{1}},
		{"binary key", inbox.Filter{Key: []byte("\x00\xff")}, []int{4}},
		{"since", inbox.Filter{Since: hourAgo}, []int{3, 4, 5}},
		{"before", inbox.Filter{Before: hourAgo}, []int{0, 1, 2}},
		{"since and before", inbox.Filter{Since: hourAgo, Before: hourAgo.Add(time.Minute)}, nil},
		{"limit", inbox.Filter{Limit: 4}, []int{0, 1, 2, 3}},
		{"reason and topic", inbox.Filter{Reason: inbox.ReasonPermanent, Topic: otherTopic}, []int{3}},
		{"reason, since and limit", inbox.Filter{Reason: inbox.ReasonPermanent, Since: hourAgo, Limit: 1}, []int{3}},
		{"numbers and before", inbox.Filter{Numbers: numbers[2:4], Before: hourAgo}, []int{2}},
		{"message ID and topic", inbox.Filter{MessageID: "0", Topic: otherTopic}, nil},
		{"all of it briefly", inbox.Filter{Brief: true}, []int{0, 1, 2, 3, 4, 5}},
		{"everything", inbox.Filter{
			Numbers: numbers, Reason: inbox.ReasonPermanent, Topic: otherTopic, MessageID: "3", Key: []byte("k"),
			Since: hourAgo, Before: hourAgo.Add(10 * time.Hour), Limit: 5,
		}, []int{3}},
	}
}

// hourAgo lies between the two times of addVaried on the database's own clock.
func (f *fixture[Tx]) hourAgo() time.Time {
	letters := f.letters(consumer, inbox.Filter{})
	return letters[0].CreatedAt.Add(time.Hour)
}

func everyFieldSelects[Tx any](f *fixture[Tx]) {
	numbers := f.addVaried()
	for _, s := range selections(numbers, f.hourAgo()) {
		f.Run(s.name, func(t *testing.T) {
			letters, err := f.store.DeadLetters(t.Context(), consumer, limited(s.filter))
			if err != nil {
				t.Fatal(err)
			}
			var got []int
			for _, letter := range letters {
				got = append(got, slices.Index(numbers, letter.Number))
			}
			if !slices.Equal(got, s.want) {
				t.Errorf("selects %v, want %v", got, s.want)
			}
		})
	}

	// Since is inclusive, Before is not.
	at := f.letters(consumer, inbox.Filter{})[0].CreatedAt
	if got := len(f.letters(consumer, inbox.Filter{Since: at, Limit: 1})); got != 1 {
		f.Error("Since excludes its own instant")
	}
	if got := len(f.letters(consumer, inbox.Filter{Before: at})); got != 0 {
		f.Error("Before includes its own instant")
	}
}

func discardDeletesWhatTheListShowed[Tx any](f *fixture[Tx]) {
	for i := range selections(make([]int64, 6), time.Time{}) {
		numbers := f.addVaried()
		s := selections(numbers, f.hourAgo())[i]
		f.discard(s.filter, len(s.want))
		var left []int
		for _, letter := range f.letters(consumer, inbox.Filter{}) {
			left = append(left, slices.Index(numbers, letter.Number))
		}
		for number := range numbers {
			if slices.Contains(left, number) == slices.Contains(s.want, number) {
				f.Errorf("%s: %v are left, want all but %v", s.name, left, s.want)
				break
			}
		}
		f.discard(inbox.Filter{}, len(left))
	}
}
